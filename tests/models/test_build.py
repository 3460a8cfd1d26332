"""`build`: names, own factories, and errors that say what would be accepted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.errors import ConfigError
from assay.models import build

OWN = """
import functools
import threading
import torch
from torch import nn

def with_shapes(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], classes))

def with_anything(**settings):
    return nn.Linear(settings["input_shape"][0], settings["classes"])

def without():
    return nn.Linear(6, 2)

def other_defaults(width=9):
    return nn.Linear(width, 2)

class Net(nn.Linear):
    def __init__(self, *, input_shape, classes):
        super().__init__(input_shape[0], classes)

def lazy_import():
    import own_helper
    return own_helper.model()

def no_model():
    return "a model"

def broken():
    raise RuntimeError("inside the factory")

@functools.cache
def cached():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))

def around_a_cached_one():
    return nn.Sequential(cached(), nn.Linear(4, 3))

class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock, self.inner = threading.Lock(), nn.Linear(5, 3)

@functools.cache
def cached_locked():
    return Locked()

def around_a_cached_locked_one():
    return nn.Sequential(cached_locked(), nn.Linear(3, 3))

def compiled():
    return torch.compile(nn.Linear(5, 3))

needs = lambda depth: None
built = nn.Linear(2, 2)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory, which is not on sys.path."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "nets.py").write_text(OWN)
    (package / "needs_absent.py").write_text("import surely_not_installed")
    (tmp_path / "own_helper.py").write_text("from torch import nn\ndef model(): return nn.Linear(4, 4)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    for name in ("own_package", "own_package.nets", "own_package.needs_absent", "own_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "own_package.nets"


def refusal(name: str, *, input_shape: tuple[int, ...] = (5,), classes: int = 3) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(name, input_shape=input_shape, classes=classes)
    return caught.value


@pytest.mark.parametrize(
    ("factory", "features"),
    [
        ("with_anything", (5, 3)),
        ("without", (6, 2)),
        ("other_defaults", (9, 2)),
        ("Net", (5, 3)),
        ("lazy_import", (4, 4)),
    ],
)
def test_own_factory(own: str, factory: str, features: tuple[int, int]) -> None:
    before = list(sys.path)
    model = build(f"{own}:{factory}", input_shape=(5,), classes=3)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == features
    assert sys.path == before


def test_own_factory_gets_shape_and_classes(own: str) -> None:
    model = build(f"{own}:with_shapes", input_shape=(5,), classes=3)
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 5), (3,)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_package.nets:make", "No module named 'no_such_package'"),
        ("own_package.absent:make", "No module named 'own_package.absent'"),
        ("own_package.needs_absent:make", "No module named 'surely_not_installed'"),
        ("own_package.nets:absent", "'own_package.nets' has no 'absent'"),
        ("own_package.nets:no_model", "it returned a str"),
        ("own_package.nets:built", "'built' is a Linear"),
        ("own_package.nets:number", "'number' is a int"),
        ("own_package.nets:needs", "depth"),
        ("own_package.nets:", "package.module:factory"),
        (":make", "package.module:factory"),
        (".nets:make", "package.module:factory"),
    ],
)
def test_own_factory_refused(own: str, name: str, said: str) -> None:
    error = refusal(name)
    assert error.field == "model"
    assert error.value == name
    assert said in str(error)
    assert "factory(input_shape=..., classes=...)" in str(error)


@pytest.mark.parametrize("factory", ["cached", "around_a_cached_one", "Locked", "compiled"])
def test_every_model_of_a_factory_is_its_own(own: str, factory: str) -> None:
    """Trials of one process must not go on training the model that another one left."""

    def made() -> nn.Module:
        torch.manual_seed(1)
        return build(f"{own}:{factory}", input_shape=(5,), classes=3)

    made()  # importing draws as well, and what is cached is drawn once
    first = made()
    before = [t.clone() for t in first.state_dict().values()]
    with torch.no_grad():
        for t in (*first.parameters(), *first.buffers()):
            t.add_(1)
    after = made().state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("factory", ["without", "Locked"])
def test_making_sure_of_it_draws_nothing(own: str, factory: str) -> None:
    """A seed gives the numbers that it gives with the factory alone."""
    name = f"{own}:{factory}"
    build(name, input_shape=(5,), classes=3)  # importing draws as well
    drawn = []
    for make in (lambda: build(name, input_shape=(5,), classes=3), getattr(sys.modules[own], factory)):
        torch.manual_seed(1)
        make()
        drawn.append(torch.rand(1))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("factory", ["cached_locked", "around_a_cached_locked_one"])
def test_one_model_for_all_that_cannot_be_copied_is_refused(own: str, factory: str) -> None:
    error = refusal(f"{own}:{factory}")
    assert error.field == "model"
    assert "a new one each time" in str(error)


def test_error_inside_a_factory_is_the_users_own(own: str) -> None:
    before = list(sys.path)
    with pytest.raises(RuntimeError, match="inside the factory"):
        build(f"{own}:broken", input_shape=(5,), classes=3)
    assert sys.path == before


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lenet", "lenet5"), ("LeNet5", "lenet5"), ("resnet-20", "resnet20"), ("mnist_cnn", "mnist-cnn")],
)
def test_unknown_name_suggests(typed: str, meant: str) -> None:
    message = str(refusal(typed))
    assert f"model = {typed!r}" in message
    assert f"did you mean {meant!r}?" in message


def test_unknown_name_lists_what_there_is() -> None:
    message = str(refusal("transformer"))
    assert "did you mean" not in message
    assert "logistic, mlp, mnist-cnn, lenet5, lenet5-6, model3, alexnet, resnet20, resnet18, densenet40" in message
    assert "package.module:factory" in message


def test_flat_records_for_an_image_model() -> None:
    message = str(refusal("lenet5", input_shape=(104,)))
    assert "lenet5 takes images (channels, height, width) of at least 4×4" in message
    assert "shape (104,)" in message
    assert message.endswith("for this shape: logistic, mlp, linear-head")


def test_image_too_small() -> None:
    message = str(refusal("mnist-cnn", input_shape=(1, 8, 8)))
    assert "at least 14×14" in message
    assert "shape (1, 8, 8)" in message
    assert "for this shape: logistic, mlp, lenet5, lenet5-6, model3, resnet20, resnet18, densenet40" in message


@pytest.mark.parametrize("shape", [(), (0,), (3, -1, 4)])
def test_impossible_input_shape(shape: tuple[int, ...]) -> None:
    assert refusal("mlp", input_shape=shape).field == "input_shape"


@pytest.mark.parametrize("classes", [0, -2])
def test_impossible_classes(classes: int) -> None:
    error = refusal("mlp", classes=classes)
    assert (error.field, error.value) == ("classes", classes)
