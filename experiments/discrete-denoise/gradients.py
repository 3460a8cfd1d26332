"""`python experiments/discrete-denoise/gradients.py`: how a record's gradient is distributed over its coordinates (the
paper's Figure 1).

Trains the MNIST CNN for an epoch without privacy (the records are public), takes the gradients of 256 records one by
one and draws gradients.png beside this file: most coordinates are within τ of 0, few are large, and these decide the
norm that clipping looks at.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from assay import data, models
from assay.gradients.engine import Engine

HERE = Path(__file__).parent
TAU, RECORDS, BATCH = 0.001, 256, 256


def main() -> None:
    """Train, collect, draw and print."""
    bundle = data.load("mnist")
    torch.manual_seed(0)
    model = models.build("mnist-cnn", input_shape=bundle.input_shape, classes=bundle.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    for index in torch.randperm(len(bundle.train_x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(bundle.train_x[index]), bundle.train_y[index]).backward()
        optimizer.step()
    engine = Engine(model)
    x, y = bundle.train_x[:RECORDS], bundle.train_y[:RECORDS]
    whole = engine.collect(F.cross_entropy(model(x), y, reduction="none")).per_record()
    values = torch.cat([part.flatten(1) for part in whole.values()], 1)
    inside = float((values.abs() <= TAU).double().mean())
    largest = float(values.abs().max())
    print(f"{values.numel()} coordinates, {inside:.1%} within ±{TAU:g}, the largest {largest:.3g}")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(values.flatten().numpy(), bins=201, range=(-largest, largest), log=True)
    axes.set_xlabel("a coordinate of a record's gradient")
    axes.set_ylabel("how many (logarithmic)")
    FigureCanvasAgg(figure).print_png(str(HERE / "gradients.png"))


if __name__ == "__main__":
    main()
