"""Which records each client holds: `iid`, `dirichlet:ALPHA` or `label:K`, the same for the same seed everywhere.

Every record goes to exactly one client. In the world, clients hold what they hold. A partition imitates that from the
labels of a data set and a public seed, and is not private.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay._util.files import replacing
from assay.errors import ConfigError, check_above_zero

Indices = NDArray[np.int64]

_ACCEPTED = "iid, dirichlet:ALPHA (ALPHA above 0) or label:K (K whole, 1 or above)"


@dataclass(frozen=True, slots=True)
class Partition:
    """How records are divided among clients.

    - iid: at random; sizes are equal to within one.
    - dirichlet: the clients' shares of each class are one draw of Dirichlet(α, ..., α), so a small α means unequal
      clients (Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual
      classification", 2019, arXiv:1909.06335).
    - label: records sorted by label are cut into clients × K equal shards and each client gets K of them, hence few
      labels (McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017,
      arXiv:1602.05629).
    """

    kind: str
    value: float | None = None

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}:{self.value:g}"

    def divide(self, labels: Indices, clients: int, seed: int) -> list[Indices]:
        """Divide records among clients.

        Args:
            labels: The label of each record.
            clients: How many clients there are.
            seed: Public; the same seed gives the same division.

        Returns:
            The sorted indices of each client's records.

        Raises:
            ConfigError: There are more clients, or shards, than records.
        """
        if not 1 <= clients <= len(labels):
            raise ConfigError("clients", clients, f"a whole number from 1 to the number of records, {len(labels)}")
        rng = np.random.default_rng(seed)
        parts = {"iid": _iid, "dirichlet": _dirichlet, "label": _label}[self.kind](labels, clients, self.value, rng)
        return [np.sort(part) for part in parts]


def parse(text: str) -> Partition:
    """Read a partition as people type it.

    Args:
        text: `iid`, `dirichlet:ALPHA` or `label:K`.

    Returns:
        The partition.

    Raises:
        ConfigError: The text is none of these.

    >>> str(parse("dirichlet:0.5"))
    'dirichlet:0.5'
    """
    kind, _, rest = text.partition(":")
    try:
        value = float(rest) if rest else None
    except ValueError as error:
        raise ConfigError("partition", text, _ACCEPTED) from error
    if kind not in ("iid", "dirichlet", "label") or (kind == "iid") != (value is None):
        raise ConfigError("partition", text, _ACCEPTED)
    if value is not None:
        check_above_zero("partition", value)
        if kind == "label" and value != int(value):
            raise ConfigError("partition", text, _ACCEPTED)
    return Partition(kind, value)


def counts(labels: Indices, parts: list[Indices], classes: int) -> NDArray[np.int64]:
    """Records of each client (row) and label (column)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def draw(table: NDArray[np.int64], path: Path, title: str) -> None:
    """Draw `counts` as a picture: a bar for each client, a colour for each label."""
    from matplotlib.figure import Figure  # only needed here, and slow to import

    clients, classes = table.shape
    figure = Figure(figsize=(max(5.0, min(16.0, 1.5 + 0.12 * clients)), 4), layout="constrained")
    axes = figure.add_subplot()
    below = np.zeros(clients)
    for label in range(classes):
        colour = f"C{label}" if classes <= 10 else None
        axes.bar(np.arange(clients), table[:, label], bottom=below, width=0.9, color=colour, label=str(label))
        below += table[:, label]
    axes.set(xlabel="client", ylabel="records", title=title)
    if classes <= 20:
        axes.legend(title="label", fontsize="x-small", ncols=2, loc="center left", bbox_to_anchor=(1, 0.5))
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _iid(labels: Indices, clients: int, _: float | None, rng: np.random.Generator) -> list[Indices]:
    return list(np.array_split(rng.permutation(len(labels)), clients))


def _dirichlet(labels: Indices, clients: int, alpha: float | None, rng: np.random.Generator) -> list[Indices]:
    assert alpha is not None
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for share, piece in zip(held, np.split(members, cuts), strict=True):
            share.append(piece)
    return [np.concatenate(pieces) for pieces in held]


def _label(labels: Indices, clients: int, each: float | None, rng: np.random.Generator) -> list[Indices]:
    assert each is not None
    shards = clients * int(each)
    if shards > len(labels):
        raise ConfigError("partition", f"label:{each:g}", f"at most {len(labels) // clients} shards for each client")
    order = rng.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], shards)
    given = rng.permutation(shards).reshape(clients, int(each))
    return [np.concatenate([pieces[shard] for shard in theirs]) for theirs in given]
