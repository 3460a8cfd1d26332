"""Starting from a checkpoint, and training the last layers only."""

import copy
import math
import pickle
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

from assay import Plan, fit
from assay.data.sampling import FullBatch
from assay.errors import ConfigError, DataError
from assay.gradients.clipping import Flat
from assay.models import build, compat
from assay.models.compat import layer_path, trainable_layers
from assay.models.inputs import scale_inputs, shift_inputs
from assay.models.transfer import load_initial, located, train_only

SHAPE = (1, 8, 8)


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Load a checkpoint; the names of the parameters that it did not provide."""
    return load_initial(model, path)[1]


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


def refusal(path, state=None):
    """What `load_initial` says about a file, which is `state` if that is given."""
    if state is not None:
        torch.save(state, path)
    with pytest.raises(ConfigError) as caught:
        load_weights(build("lenet5", input_shape=SHAPE, classes=10), path)
    assert (caught.value.field, caught.value.value, caught.value.exit_code) == ("init", str(path), 2)
    assert "weights_only" not in str(caught.value)
    return caught.value.accepted


def test_each_parameter_that_does_not_fit_is_told_with_what_is_wrong_about_it(tmp_path):
    good = build("lenet5", input_shape=SHAPE, classes=10).state_dict()
    path, first, second = tmp_path / "it.pt", "features.conv1.weight", "features.conv2.bias"
    assert refusal(path, {n: t for n, t in good.items() if n != first}).endswith(f"{first} is missing there")
    assert f"{first} has shape (6, 3, 5, 5) there and (6, 1, 5, 5) in the model" in refusal(
        path, good | {first: torch.zeros(6, 3, 5, 5)}
    )
    assert refusal(path, good | {"extra.weight": torch.zeros(2)}).endswith("extra.weight is not in the model")
    assert f"{second} is torch.int64 there and torch.float32" in refusal(path, good | {second: good[second].long()})
    said = refusal(path, {n: t for n, t in good.items() if n.startswith("head.fc3")})
    assert said.count("is missing there") == 3
    assert said.endswith(f"and {len(good) - 2 - 3} more")
    assert load_weights(build("lenet5", input_shape=SHAPE, classes=10), _saved(path, good)) == []
    other = good | {"head.fc3.scale": torch.ones(1)}  # the last layer may be another one
    assert load_weights(build("lenet5", input_shape=SHAPE, classes=10), _saved(path, other)) == []


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    good = build("lenet5", input_shape=SHAPE, classes=10).state_dict()
    name = "features.conv1.bias"
    for value in (math.nan, math.inf, 1e300):  # the last one in float32
        said = refusal(tmp_path / "it.pt", good | {name: torch.full((6,), value, dtype=torch.float64)})
        assert f"{name} has NaN or infinity" in said
    assert "input_shift has NaN" in refusal(tmp_path / "it.pt", good | {"input_shift": torch.tensor(math.nan)})


def test_weights_are_found_inside_a_training_scripts_checkpoint(tmp_path):
    good = build("lenet5", input_shape=SHAPE, classes=10).state_dict()
    parallel = {f"module.{name}": t for name, t in good.items()}
    for state in (
        {"state_dict": good},
        {"model": good, "optimizer": {"lr": 0.1}, "epoch": 3},
        parallel,
        {"state_dict": parallel},
    ):
        mine = build("lenet5", input_shape=SHAPE, classes=10)
        assert load_weights(mine, _saved(tmp_path / "it.pt", state)) == []
        assert all(torch.equal(t, good[name]) for name, t in mine.state_dict().items())
    own = nn.Sequential(OrderedDict(module=nn.Linear(2, 2), last=nn.Linear(2, 2)))  # names of its own that begin so
    assert load_weights(own, _saved(tmp_path / "it.pt", own.module.state_dict(prefix="module."))) == [
        "last.weight",
        "last.bias",
    ]


def test_files_with_code_and_files_that_are_no_checkpoint_are_refused_in_our_own_words(tmp_path):
    whole = build("lenet5", input_shape=SHAPE, classes=10).state_dict()
    for state in (nn.Linear(2, 2), {"state_dict": whole, "args": Namespace(lr=1)}):
        assert "holds code or other objects and is not loaded" in refusal(tmp_path / "code.pt", state)
    (tmp_path / "code.pt").write_bytes(pickle.dumps(Namespace(lr=1)))
    assert "holds code or other objects and is not loaded" in refusal(tmp_path / "code.pt")
    for name in ("it.pt", "it.safetensors"):
        save = save_file if name.endswith("safetensors") else torch.save
        save(whole, tmp_path / name)
        content = (tmp_path / name).read_bytes()
        for damaged in (content[:1000], content[:-10], b"<!DOCTYPE html>", b"hello, this is text"):
            (tmp_path / name).write_bytes(damaged)
            assert "truncated, damaged or of another kind" in refusal(tmp_path / name)
        (tmp_path / name).write_bytes(b"")
        assert "is empty" in refusal(tmp_path / name)
        (tmp_path / name).unlink()
        assert "No such file" in refusal(tmp_path / name)
    for state in ([1, 2], {0: torch.zeros(2)}, {"a": 1}, {"a": torch.eye(2).to_sparse()}):
        assert "a mapping of names to dense tensors" in refusal(tmp_path / "it.pt", state)


def _saved(path, state):
    torch.save(state, path)
    return path


@pytest.mark.parametrize("adapt", [shift_inputs, scale_inputs])
def test_what_a_checkpoint_was_trained_to_do_to_its_inputs_comes_with_it(tmp_path, adapt):
    public = build("lenet5", input_shape=SHAPE, classes=10).eval()
    adapt(public, torch.linspace(-1, 3, 64).view(SHAPE))
    save_file(public.state_dict(), tmp_path / "public.safetensors")
    x = torch.randn(3, *SHAPE)
    for mine in (build("lenet5", input_shape=SHAPE, classes=10), copy.deepcopy(public)):
        assert load_weights(mine.eval(), tmp_path / "public.safetensors") == []
        assert torch.equal(mine(x), public(x))
    other = build("lenet5", input_shape=SHAPE, classes=7)
    assert load_weights(other, tmp_path / "public.safetensors") == ["head.fc3.weight", "head.fc3.bias"]


def test_only_the_last_layers_are_trained():
    model = build("lenet5", input_shape=SHAPE, classes=10)
    train_only(model, "all")
    assert len(trainable_layers(model)) == 5
    train_only(model, "last:2")
    assert trainable_layers(model) == ["head.fc2", "head.fc3"]
    for text in ("first:1", "last:0", "last:9", "last", "last:-1"):
        with pytest.raises(ConfigError, match="train_layers"):
            train_only(build("lenet5", input_shape=SHAPE, classes=10), text)


def torchvision_resnet18(seed=0, layers=(2, 2, 2, 2)):
    """Names and shapes of `torchvision.models.resnet18().state_dict()`, written down from there; values are random."""
    shapes = {"conv1.weight": (64, 3, 7, 7)}

    def norm(name, width):
        shapes.update({f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    before = 64
    for number, (width, blocks) in enumerate(zip((64, 128, 256, 512), layers, strict=True), start=1):
        for block in range(blocks):
            at = f"layer{number}.{block}"
            shapes[f"{at}.conv1.weight"] = (width, before, 3, 3)
            norm(f"{at}.bn1", width)
            shapes[f"{at}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{at}.bn2", width)
            if before != width:
                shapes[f"{at}.downsample.0.weight"] = (width, before, 1, 1)
                norm(f"{at}.downsample.1", width)
            before = width
    shapes |= {"fc.weight": (1000, 512), "fc.bias": (1000,)}
    source = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        fan_in = torch.Size(shape[1:]).numel()
        state[name] = torch.randn(shape, generator=source) / fan_in**0.5
        if name.endswith(("running_var", ".weight")) and len(shape) == 1:
            state[name] = state[name].abs() + 0.5
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(5)
    return state


def torchvision_forward(state, pictures):
    """Its network in eval mode, written out, on pixels from 0 to 1 normalised as its weights expect them."""

    def conv(x, name, stride=1, padding=1):
        return F.conv2d(x, state[f"{name}.weight"], stride=stride, padding=padding)

    def norm(x, name):
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-5)

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (pictures - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    x = F.max_pool2d(norm(conv(x, "conv1", 2, 3), "bn1").relu(), 3, 2, 1)
    for number in range(1, 5):
        for block in range(2):
            at, stride = f"layer{number}.{block}", 2 if number > 1 and block == 0 else 1
            out = norm(conv(x, f"{at}.conv1", stride), f"{at}.bn1").relu()
            out = norm(conv(out, f"{at}.conv2"), f"{at}.bn2")
            if f"{at}.downsample.0.weight" in state:
                x = norm(conv(x, f"{at}.downsample.0", stride, 0), f"{at}.downsample.1")
            x = (out + x).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def test_torchvisions_resnet18_computes_what_it_computes_there(tmp_path):
    state = torchvision_resnet18()
    assert len(state) == 122
    assert sum(t.numel() for n, t in state.items() if "running" not in n and "tracked" not in n) == 11_689_512
    torch.save(state, tmp_path / "resnet18.pth")
    for side in (32, 72):  # pictures that resnet18 has another stem for by itself, and larger ones
        model = build("resnet18", input_shape=(3, side, side), classes=1000)
        assert load_weights(model, tmp_path / "resnet18.pth") == []
        pictures = torch.rand(2, 3, side, side)
        for mode in (True, False):  # a frozen layer does the same in training
            with torch.no_grad():
                ours, theirs = model.train(mode)(2 * pictures - 1), torchvision_forward(state, pictures)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_last_convolutions_of_torchvisions_resnet18_are_trained_and_nothing_else(tmp_path):
    """GReDP's ResNet18-1Conv and 2Conv: the last one or two convolutions, and a new last layer."""
    torch.save(torchvision_resnet18(), tmp_path / "resnet18.pth")
    for layers, trained in (
        ("last:2", ["stages.stage4.1.conv2", "fc"]),
        ("last:3", ["stages.stage4.1.conv1", "stages.stage4.1.conv2", "fc"]),
    ):
        model = build("resnet18", input_shape=(3, 32, 32), classes=10)
        assert load_weights(model, tmp_path / "resnet18.pth") == ["fc.weight", "fc.bias"]
        train_only(model, layers)
        assert trainable_layers(model) == trained
    compat.check(model.train())
    x, y = torch.randn(3, 3, 32, 32), torch.tensor([1, 2, 3])
    before = {name: t.clone() for name, t in model.state_dict().items()}
    plan = Plan(
        records=3, batch_size=3, steps=2, noise_multiplier=1.0, delta=1e-3, clip=Flat(bound=1.0), sampling=FullBatch
    )
    fit(model, TensorDataset(x, y), plan=plan)
    moved = {layer_path(name) for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert moved == set(trained)


def test_pixels_that_start_at_zero_are_named_for_torchvisions_network(assay, tmp_path):
    torch.save(torchvision_resnet18(), tmp_path / "resnet18.pth")
    generator = np.random.default_rng(0)
    x, y = generator.random((40, 3, 32, 32), dtype=np.float32), np.arange(40) % 2
    words = ("--model", "resnet18", "--init", tmp_path / "resnet18.pth", "--train-layers", "last:1", "--dry-run")
    for name, pixels, named in (("zero", x, True), ("signed", 2 * x - 1, False)):
        np.savez(tmp_path / f"{name}.npz", x=pixels, y=y)
        code, _, err = assay("train", "--data", tmp_path / f"{name}.npz", *words, "--out", tmp_path / "run")
        assert code == 0, err
        assert ("pixels from 0 on" in err) is named


def test_what_is_not_torchvisions_resnet18_is_refused(tmp_path):
    def refused(state, match, model="resnet18", shape=(3, 32, 32)):
        torch.save(state, tmp_path / "it.pth")
        with pytest.raises(ConfigError, match=match):
            load_weights(build(model, input_shape=shape, classes=10), tmp_path / "it.pth")

    good = torchvision_resnet18()
    refused(good, "model resnet18 with this checkpoint", model="resnet20")
    refused(good, "images of three channels", shape=(1, 32, 32))
    refused({n: t for n, t in good.items() if n != "layer3.0.bn2.running_mean"}, "stage3.0.norm2.running_mean")
    refused(torchvision_resnet18(layers=(3, 2, 2, 2)), "stages.stage1.2.conv1.weight")


def test_a_checkpoint_is_looked_for_in_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"there is no checkpoint net\.pth"):
        located(Path("net.pth"), tmp_path / "mine")
    for folder in ("data", "mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.pth").touch()
    assert located(Path("net.pth"), None) == tmp_path / "data/net.pth"
    assert located(Path("net.pth"), tmp_path / "mine") == tmp_path / "mine/net.pth"
    (tmp_path / "net.pth").touch()
    assert located(Path("net.pth"), tmp_path / "mine") == Path("net.pth")
