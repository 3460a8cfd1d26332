"""Every named architecture: its size, its shapes, and that it keeps records apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.models import ModelInfo, available, build
from assay.models.alexnet import alexnet
from assay.models.lenet import lenet5
from assay.models.mlp import mlp
from assay.models.mnist_cnn import mnist_cnn
from assay.models.model3 import model3
from assay.models.standardised import StandardisedConv2d
from assay.models.tempered import TemperedSigmoid

INFOS = available()
FROM_ZERO = {"linear-head", "scatter-linear"}
every_model = pytest.mark.parametrize("info", INFOS, ids=[info.name for info in INFOS])


def smallest_input(info: ModelInfo) -> tuple[int, ...]:
    return (3, info.smallest_side, info.smallest_side) if info.input_rank == 3 else (7,)


def parameters(name: str, input_shape: tuple[int, ...], classes: int = 10) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, input_shape=input_shape, classes=classes).parameters())


def test_names() -> None:
    names = (
        "logistic mlp mnist-cnn lenet5 lenet5-6 model3 alexnet resnet20 resnet18 densenet40 afrrs-mnist afrrs-cifar10"
        " linear-head scatter-linear scatter-cnn tanh-cnn tempered-cnn ws-resnet20"
    )
    assert [info.name for info in INFOS] == names.split()
    assert all(info.summary and info.accepts for info in INFOS)


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "expected"),
    [
        # 784·10 + 10
        ("logistic", (1, 28, 28), 10, 7_850),
        ("linear-head", (1280,), 10, 12_810),
        # 81·7²·10 + 10
        ("scatter-linear", (81, 7, 7), 10, 39_700),
        # 9·81·16 + 16, 9·16·32 + 32; sides 7→4: 32·16·32 + 32; 32·10 + 10
        ("scatter-cnn", (81, 7, 7), 10, 11_680 + 4_640 + 16_416 + 330),
        # 9·243·64 + 64, 9·64² + 64; sides 8→4: 64·16·10 + 10
        ("scatter-cnn", (243, 8, 8), 10, 140_032 + 36_928 + 10_250),
        # 784·256 + 256, 256·10 + 10
        ("mlp", (1, 28, 28), 10, 200_960 + 2_570),
        # 16·8²+16, 32·16·4²+32; sides 28→14→13→5→4: 32·4²·32+32; 32·10+10
        ("mnist-cnn", (1, 28, 28), 10, 1_040 + 8_224 + 16_416 + 330),
        # 6·25+6, 16·6·25+16; sides 28→14→10→5: 16·25·120+120, 120·84+84, 84·10+10: the usual 61,706
        ("lenet5", (1, 28, 28), 10, 156 + 2_416 + 48_120 + 10_164 + 850),
        # the original 32×32 input has the same maps; three input channels: 6·3·25+6
        ("lenet5", (1, 32, 32), 10, 61_706),
        ("lenet5", (3, 32, 32), 10, 61_706 - 156 + 456),
        # 9·(3·32, 32², 32·64, 64², 64·128, 128²) + widths; sides 32→16→8→4: 128·16·120+120; 120·10+10
        ("model3", (3, 32, 32), 10, 896 + 9_248 + 18_496 + 36_928 + 73_856 + 147_584 + 245_880 + 1_210),
        # 9·(3·64, 64·192, 192·384, 384·256, 256²) + widths; sides 32→1: 256·120+120, 120·84+84, 84·10+10
        ("alexnet", (3, 32, 32), 10, 1_792 + 110_784 + 663_936 + 884_992 + 590_080 + 30_840 + 10_164 + 850),
        # convolutions 9·(3·16 + 6·16², 16·32 + 5·32², 32·64 + 5·64²) = 14,256 + 50,688 + 202,752, no biases;
        # GroupNorm 2·(7·16 + 6·32 + 6·64) = 1,376; 64·10+10. He et al.: 0.27 M
        ("resnet20", (3, 32, 32), 10, 14_256 + 50_688 + 202_752 + 1_376 + 650),
        # stem 9·3·64 + 2·64 = 1,856; first stage 4·9·64² + 8·64; then from width v to w:
        # 9·(v·w + 3·w²) + v·w (projection) + 10·w (five norms); 512·10+10
        ("resnet18", (3, 32, 32), 10, 1_856 + 147_968 + 525_568 + 2_099_712 + 8_393_728 + 5_130),
        # the ImageNet stem 49·3·64 + 2·64 = 9,536 and 1000 classes: the 11,689,512 known for ResNet-18
        ("resnet18", (3, 224, 224), 1000, 11_689_512),
        # first 9·3·16 = 432. A layer on c channels: 2c + 9·10·c = 92c. Blocks start at c0 = 16, 68, 94 and
        # have 12 layers, Σc = 12·c0 + 660: 92·(852, 1476, 1788). Transitions 136→68 and 188→94:
        # 2·136 + 136·68 and 2·188 + 188·94. Last norm 2·214; 214·10+10
        (
            "densenet40",
            (3, 32, 32),
            10,
            432 + 78_384 + 9_520 + 135_792 + 18_048 + 164_496 + 428 + 2_150,
        ),
    ],
)
def test_parameter_count(name: str, input_shape: tuple[int, ...], classes: int, expected: int) -> None:
    assert parameters(name, input_shape, classes) == expected


def test_well_known_totals() -> None:
    assert parameters("lenet5", (1, 28, 28)) == 61_706
    assert parameters("mnist-cnn", (1, 28, 28)) == 26_010
    assert parameters("resnet20", (3, 32, 32)) == 269_722
    assert parameters("ws-resnet20", (3, 32, 32)) == 269_722
    assert parameters("resnet18", (3, 32, 32)) == 11_173_962


def test_layers_separately_clipped_by_gredp() -> None:
    # METHODS' L for the published method: convolutions and Linear layers, without normalisation.
    def weighted(name: str, input_shape: tuple[int, ...]) -> int:
        modules = build(name, input_shape=input_shape, classes=10).modules()
        return sum(isinstance(module, nn.Conv2d | nn.Linear) for module in modules)

    assert weighted("lenet5", (1, 28, 28)) == 5
    assert weighted("resnet20", (3, 32, 32)) == 20
    assert weighted("model3", (3, 32, 32)) == 8
    assert weighted("alexnet", (3, 32, 32)) == 8
    assert weighted("densenet40", (3, 32, 32)) == 40


@every_model
@pytest.mark.parametrize("records", [0, 1, 2])
def test_smallest_input_forward_and_backward(info: ModelInfo, records: int) -> None:
    shape = smallest_input(info)
    model = build(info.name, input_shape=shape, classes=5)
    out = model(torch.randn(records, *shape))
    assert out.shape == (records, 5)
    out.sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        if records == 0:
            assert not parameter.grad.any()


@pytest.mark.parametrize("info", [info for info in INFOS if info.input_rank == 3], ids=lambda info: info.name)
def test_one_pixel_less_is_refused(info: ModelInfo) -> None:
    side = info.smallest_side
    assert info.takes((1, side, side + 1))
    assert not info.takes((1, side, side - 1))
    assert not info.takes((1, side - 1, side))
    assert not info.takes((side,))
    assert not info.takes((side, side))


@pytest.mark.parametrize(
    ("shape", "refused"),
    [
        (
            (1, 8, 8),
            {"mnist-cnn", "tanh-cnn", "tempered-cnn", "alexnet", "afrrs-mnist", "afrrs-cifar10"},
        ),  # scikit-learn's digits
        ((1, 28, 28), set()),  # MNIST, Fashion-MNIST
        ((3, 32, 32), set()),  # CIFAR
        ((104,), {info.name for info in INFOS} - {"logistic", "mlp", "linear-head"}),  # Adult
        ((2, 33, 20), set()),  # not square
    ],
)
def test_which_models_take_the_library_data_sets(shape: tuple[int, ...], refused: set[str]) -> None:
    assert {info.name for info in INFOS if not info.takes(shape)} == refused
    with torch.device("meta"):
        for info in INFOS:
            if info.name not in refused:
                model = build(info.name, input_shape=shape, classes=10)
                assert model(torch.zeros(2, *shape)).shape == (2, 10)


@every_model
def test_records_do_not_influence_each_other(info: ModelInfo) -> None:
    torch.manual_seed(0)
    shape = smallest_input(info)
    model = build(info.name, input_shape=shape, classes=3).double().train()
    if info.name in FROM_ZERO:
        nn.init.normal_(next(model.parameters()))
    x = torch.randn(3, *shape, dtype=torch.float64)
    others = x.clone()
    others[1:] = 100 * torch.randn(2, *shape, dtype=torch.float64)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    first = model(x)[0]
    torch.testing.assert_close(model(others)[0], first, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(x[:1])[0], first, rtol=0, atol=1e-12)
    assert not torch.allclose(model(others)[1], model(x)[1])
    # and nothing about the records stays behind in the model
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@every_model
def test_made_of_layers_with_a_gradient_rule(info: ModelInfo) -> None:
    model = build(info.name, input_shape=smallest_input(info), classes=3)
    for module in model.modules():
        if list(module.parameters(recurse=False)):
            assert type(module) in (nn.Conv2d, nn.Linear, nn.GroupNorm, StandardisedConv2d)
        assert not list(module.buffers(recurse=False))
        assert not isinstance(module, nn.modules.dropout._DropoutNd)
        assert not getattr(module, "inplace", False)
        if isinstance(module, nn.GroupNorm):
            assert module.num_channels // module.num_groups >= 4


@every_model
def test_initialisation_follows_the_global_generator(info: ModelInfo) -> None:
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        model = build(info.name, input_shape=smallest_input(info), classes=3)
        models.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2]) == (info.name in FROM_ZERO)


@pytest.mark.parametrize("make", [mlp, mnist_cnn, lenet5, model3, alexnet])
def test_activation_can_be_chosen(make: type) -> None:
    kinds = {type(m) for m in make((1, 28, 28), 10, activation=nn.SELU).modules()}
    assert nn.SELU in kinds
    assert not kinds & {nn.Tanh, nn.ReLU}


def test_lenet5_learns_the_digits() -> None:
    # A network whose layers are wired wrongly is not caught by shapes: 40 plain steps must fit 200 digits.
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x[:200] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(y[:200])
    model = build("lenet5", input_shape=(1, 8, 8), classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model(images).argmax(1) == labels).float().mean() > 0.95


def test_tempered_sigmoids_have_the_sigmoid_and_tanh_among_them() -> None:
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    torch.testing.assert_close(TemperedSigmoid(1.0, 1.0, 0.0)(x), torch.sigmoid(x))
    torch.testing.assert_close(TemperedSigmoid(2.0, 2.0, 1.0)(x), torch.tanh(x))
