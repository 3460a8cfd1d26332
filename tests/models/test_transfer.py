"""Starting from a checkpoint, and training the last layers only."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from assay.errors import ConfigError, DataError
from assay.grads.layers import trainable_layers
from assay.models import build
from assay.models.transfer import load_weights, train_only

SHAPE = (1, 8, 8)


def test_weights_come_from_the_file_and_another_head_begins_anew(tmp_path):
    public = build("lenet5", input_shape=SHAPE, classes=7)
    save_file(public.state_dict(), tmp_path / "public.safetensors")
    torch.save(public.state_dict(), tmp_path / "public.pt")
    for name in ("public.safetensors", "public.pt"):
        mine = build("lenet5", input_shape=SHAPE, classes=10)
        before = mine.head.fc3.weight.detach().clone()
        assert load_weights(mine, tmp_path / name) == ["head.fc3.weight", "head.fc3.bias"]
        assert torch.equal(mine.head.fc3.weight, before)
        assert torch.equal(mine.features.conv1.weight, public.features.conv1.weight)
    same = build("lenet5", input_shape=SHAPE, classes=7)
    assert load_weights(same, tmp_path / "public.pt") == []
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), public.parameters(), strict=True))


def test_other_models_and_files_with_code_are_refused(tmp_path):
    save_file(build("mlp", input_shape=SHAPE, classes=10).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="missing there or of another shape"):
        load_weights(build("lenet5", input_shape=SHAPE, classes=10), tmp_path / "other.safetensors")
    torch.save(nn.Linear(2, 2), tmp_path / "code.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("code.pt", "empty.pt", "missing.pt", "missing.safetensors"):
        with pytest.raises((DataError, OSError)):
            load_weights(build("lenet5", input_shape=SHAPE, classes=10), tmp_path / name)


def test_only_the_last_layers_are_trained():
    model = build("lenet5", input_shape=SHAPE, classes=10)
    train_only(model, "all")
    assert len(trainable_layers(model)) == 5
    train_only(model, "last:2")
    assert trainable_layers(model) == ["head.fc2", "head.fc3"]
    for text in ("first:1", "last:0", "last:9", "last", "last:-1"):
        with pytest.raises(ConfigError, match="train_layers"):
            train_only(build("lenet5", input_shape=SHAPE, classes=10), text)
