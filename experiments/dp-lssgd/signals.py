"""`python experiments/dp-lssgd/signals.py`: what Laplacian smoothing does to two noisy signals (the paper's Figure 2).

Draws signals.png beside this file: a sine with noise 0.1, smoothed with σ = 10, and a product of two sines with noise
0.2, flattened row by row and smoothed with σ = 100. The smoothing is the one that `lssgd` uses.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from assay.methods.denoise.laplacian import smooth

HERE = Path(__file__).parent
POINTS = 100


def signals() -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Each signal as it is, with noise, and smoothed: first the line, then the picture."""
    noise = torch.Generator().manual_seed(0)
    wave = torch.sin(2 * torch.pi * torch.arange(1, POINTS + 1) / POINTS)
    noisy = wave + 0.1 * torch.randn(POINTS, generator=noise)
    picture = wave[:, None] * wave
    dim = picture + 0.2 * torch.randn(POINTS, POINTS, generator=noise)
    return (wave, noisy, smoothed(noisy, 10)), (picture, dim, smoothed(dim, 100))


def smoothed(values: Tensor, sigma: float) -> Tensor:
    """The values as one vector, smoothed."""
    return smooth(values.flatten(), sigma).reshape(values.shape)


def error(values: Tensor, truth: Tensor) -> float:
    """The root of the mean squared difference."""
    return float((values - truth).square().mean().sqrt())


def main() -> None:
    """Draw and print."""
    line, picture = signals()
    for name, (truth, noisy, better) in (("1-D", line), ("2-D", picture)):
        print(f"{name}: error {error(noisy, truth):.3f} with noise, {error(better, truth):.3f} smoothed")
    figure = Figure(figsize=(12, 3), layout="constrained")
    first, *others = figure.subplots(1, 4)
    for values, label, style in zip(line, ("original", "noisy", "smoothed, σ = 10"), ("-", ".", "--"), strict=True):
        first.plot(values.numpy(), style, label=label)
    first.legend()
    for axes, values, title in zip(others, picture, ("original", "noisy", "smoothed, σ = 100"), strict=True):
        axes.imshow(values.numpy(), vmin=-1.5, vmax=1.5)
        axes.set_title(title)
        axes.set_axis_off()
    FigureCanvasAgg(figure).print_png(str(HERE / "signals.png"))


if __name__ == "__main__":
    main()
