"""How the text of AFRRS may be read where it leaves room (`assay.methods.afrrs` cites the paper).

Eq. 16 adds (1/|L|) Lap(Δ_f/ε_k) to every feature of every record. The paper does not say how many draws that is, what
becomes of values outside [0, 1], or how large |L| is, and its Algorithm 2 is silent about the test records. Each answer
has its own ε, which `Reading.features_reason` and `Reading.size_of` follow:

- `shared=record`: every record has noise of its own. The likelihood of a noisy record changes by at most e^(Σ_j 1/b_j)
  (`assay.methods.perturb.inputs`), so ε = |L| ε2/(2|h_0|).
- `shared=batch` and `shared=data`: one draw for a whole batch, or for all records. The difference of two noisy records
  that share a draw is the difference of the records. Who knows one of them knows the other exactly, so no ε holds.
- `noisy=clamp`: values beyond [0, 1] are cut after the noise. That is post-processing and changes no ε.
- `size=batch` and `size=data`: |L| is the batch, or the number of records. All noise falls with |L|, and ε grows with
  it: at |L| = 60,000 a claim of ε2 = 0.2 verifies as 375 for 16 filters.
- `test=noisy`: test records get noise of the same scales, or the same draw with `shared=data`. They are not protected.
- `bias=plain`: the noise of Eq. 18 on the first bias is left out. A bias is not data, and no ε depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.errors import ConfigError, one_of

CHOICES = {
    "shared": ("record", "batch", "data"),
    "noisy": ("plain", "clamp"),
    "size": ("batch", "data"),
    "test": ("plain", "noisy"),
    "bias": ("noisy", "plain"),
}
"""The options of a reading and their values; the first is the default, the paper's text to the letter."""

SHARED_IS_NOT_PRIVATE = (
    "records that share a draw of the noise differ as they did before: who knows one of them knows the others exactly, "
    "and no finite ε holds for the features"
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of the published algorithm.

    Attributes:
        shared: who shares a draw of the noise on inputs: "record", "batch" (records in their order, |batch| at a time)
            or "data".
        noisy: "plain" leaves noisy inputs as they are, "clamp" cuts them to [0, 1].
        size: what |L| is, the "batch" size or the number of records, "data".
        test: whether test records get noise too: "plain" or "noisy".
        bias: whether the first bias gets the noise of Eq. 18: "noisy" or "plain".

    Raises:
        ConfigError: a value is none of these.

    >>> Reading(size="data").size_of(500, 60_000)
    60000
    """

    shared: str = "record"
    noisy: str = "plain"
    size: str = "batch"
    test: str = "plain"
    bias: str = "noisy"

    def __post_init__(self) -> None:
        for name, accepted in CHOICES.items():
            if getattr(self, name) not in accepted:
                raise ConfigError(name, getattr(self, name), one_of(getattr(self, name), accepted))

    def size_of(self, batch_size: float, records: int) -> float:
        """|L|."""
        return records if self.size == "data" else batch_size

    @property
    def features_reason(self) -> str:
        """Why no ε holds for the features; empty if one does."""
        return "" if self.shared == "record" else SHARED_IS_NOT_PRIVATE

    def describe(self) -> list[str]:
        """What differs from the text to the letter, for the statement."""
        said = {
            "shared": {
                "batch": "records in their order share a draw of the noise on features, a batch at a time",
                "data": "all records share one draw of the noise on features",
            },
            "noisy": {"clamp": "noisy features are cut to [0, 1] (no further cost)"},
            "size": {"data": "|L| in the scales of the noise is the number of records, not the batch size"},
            "test": {"noisy": "test records get noise on their features too, and accuracies are measured on these"},
            "bias": {"plain": "the first bias gets no noise (it is not data)"},
        }
        found = [said[name].get(getattr(self, name)) for name in said]
        return [line for line in found if line is not None]
