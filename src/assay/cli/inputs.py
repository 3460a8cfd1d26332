"""Data and models as the command line names them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from assay import data as data_room
from assay import models as models_room
from assay.data import DataBundle
from assay.errors import ConfigError
from assay.models.circulant import replace_linear


def load(data: str, data_dir: Path | None, records: int | None) -> DataBundle:
    """The data set, or its first training records."""
    bundle = data_room.load(data, data_dir)
    there = len(bundle.train_x)
    if records is None or records == there:
        return bundle
    if not 1 <= records <= there:
        raise ConfigError("records", records, f"a whole number from 1 to {there}, the training records of {data}")
    return replace(bundle, train_x=bundle.train_x[:records], train_y=bundle.train_y[:records])


def build(model: str, circulant: int | None, bundle: DataBundle, seed: int | None) -> torch.nn.Module:
    """The model, initialised from the seed, or from the operating system (torch's own default is a constant)."""
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)
    network = models_room.build(model, input_shape=bundle.input_shape, classes=bundle.classes)
    if circulant is not None:
        replace_linear(network, circulant)
    return network
