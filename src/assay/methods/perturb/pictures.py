"""Heat maps of released relevance and its regions, from released values only (AFRRS, Fig. 2 and 3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay._util.files import replacing
from assay.methods.perturb.regions import Regions

if TYPE_CHECKING:
    from torch import Tensor


def draw(relevance: Tensor, regions: Regions, path: Path) -> None:
    """Write a picture: the relevance beside the mean relevance of each feature's region, averaged over channels.

    Flat records have no picture.
    """
    if relevance.dim() < 2:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for place, (title, values) in enumerate(
        (("relevance", relevance), (f"{len(regions)} regions", regions.of_features(regions.relevance))), start=1
    ):
        axes = figure.add_subplot(1, 2, place)
        shown = axes.imshow(_flat(values), cmap="Reds")
        axes.set_title(title)
        figure.colorbar(shown, ax=axes)
    with replacing(path) as temporary:
        canvas.print_png(str(temporary))  # type: ignore[no-untyped-call]


def _flat(values: Tensor) -> list[list[float]]:
    """The values as one image."""
    values = values.double()
    while values.dim() > 2:
        values = values.mean(0)
    listed: list[list[float]] = values.tolist()
    return listed
