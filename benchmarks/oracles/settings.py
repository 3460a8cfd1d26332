"""The runs whose ε is compared. Only the standard library: peers are asked in an environment of their own."""

from __future__ import annotations

from dataclasses import dataclass

ADDED, REPLACED = "add-or-remove-one", "replace-one"
CAPS = {(60_000, 256): 368, (60_000, 2048): 2344, (50_000, 4096): 4496, (5000, 500): 648}


@dataclass(frozen=True)
class Setting:
    """One run with Gaussian noise."""

    sampling: str
    adjacency: str
    noise: float
    records: int
    batch: int
    steps: int
    delta: float = 1e-5
    bands: int = 1

    @property
    def key(self) -> str:
        """Its name in the results."""
        bands = f" bands={self.bands}" if self.bands > 1 else ""
        return (
            f"{self.sampling} {self.adjacency} σ={self.noise:g} {self.batch}/{self.records} steps={self.steps} "
            f"δ={self.delta:g}{bands}"
        )

    @property
    def rate(self) -> float:
        """The chance that a record is in a batch; of a band that has its turn, where there are bands."""
        return min(1.0, self.bands * self.batch / self.records)

    @property
    def turns(self) -> int:
        """How often a record may be drawn."""
        return -(-self.steps // self.bands)

    @property
    def epoch(self) -> int:
        """The batches of an epoch."""
        return max(1, round(self.records / self.batch))

    @property
    def cap(self) -> int:
        """The largest batch of truncated Poisson sampling: that of Assay's sampler."""
        return CAPS[self.records, self.batch]


def _each(sampling: str, adjacency: str, *runs: tuple[float, int, int, int], delta: float = 1e-5) -> list[Setting]:
    return [Setting(sampling, adjacency, *run, delta=delta) for run in runs]


SETTINGS: tuple[Setting, ...] = (
    *_each("full", ADDED, (4.0, 1000, 1000, 1), (20.0, 1000, 1000, 100), (50.0, 5000, 5000, 1000)),
    *_each("full", REPLACED, (8.0, 1000, 1000, 1), (30.0, 1000, 1000, 100)),
    *_each(
        "poisson",
        ADDED,
        (2.856, 60_000, 2048, 439),
        (1.0, 60_000, 256, 8000),
        (1.1, 60_000, 256, 14_000),
        (0.6, 60_000, 64, 2000),
        (4.0, 50_000, 4096, 2500),
        (10.0, 50_000, 16_384, 500),
        (0.8, 1_000_000, 1000, 20_000),
        (1.5, 5000, 500, 50),
    ),
    *_each("poisson", ADDED, (1.0, 60_000, 256, 8000), (2.0, 10_000, 500, 200), delta=1e-7),
    *_each(
        "poisson",
        REPLACED,
        (2.856, 60_000, 2048, 439),
        (1.0, 60_000, 256, 8000),
        (4.0, 50_000, 4096, 2500),
        (1.5, 5000, 500, 50),
        (0.8, 1_000_000, 1000, 5000),
    ),
    *_each(
        "without-replacement",
        REPLACED,
        (1.0, 60_000, 256, 8000),
        (2.0, 60_000, 256, 8000),
        (4.0, 50_000, 4096, 2500),
        (2.0, 50_000, 500, 1000),
        (1.5, 5000, 500, 50),
        (8.0, 10_000, 1000, 300),
        (4.0, 10_000, 1000, 500),
    ),
    *_each(
        "shuffle",
        ADDED,
        (1.0, 60_000, 256, 234 * 35),
        (2.856, 60_000, 2069, 29 * 15),
        (4.0, 1000, 100, 200),
        (1.0, 1000, 100, 1000),
        (1.0, 1000, 100, 50),
        (2.0, 1000, 20, 500),
        (1.5, 1000, 100, 10),
    ),
    *_each("shuffle", ADDED, (4.0, 1000, 100, 200), delta=1e-7),
    *_each(
        "truncated-poisson",
        ADDED,
        (1.0, 60_000, 256, 8000),
        (2.856, 60_000, 2048, 439),
        (4.0, 50_000, 4096, 2500),
        (1.5, 5000, 500, 50),
    ),
    *_each("truncated-poisson", REPLACED, (1.0, 60_000, 256, 8000), (4.0, 50_000, 4096, 2500)),
    *_each("permutation", REPLACED, (4.0, 1000, 100, 200), (8.0, 60_000, 256, 235 * 10)),
    Setting("poisson", ADDED, 1.0, 60_000, 256, 4000, bands=4),
    Setting("poisson", ADDED, 2.0, 50_000, 500, 2000, bands=16),
    Setting("poisson", ADDED, 4.0, 50_000, 500, 2000, bands=100),
)
