"""Layers that mix records are found and named; what replaces BatchNorm works and keeps records apart."""

from __future__ import annotations

import copy
import warnings
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from assay.errors import ConfigError, UnsupportedModelError
from assay.models.compat import Choice, Replacement, check, problems, replace_batchnorm
from assay.models.norm import FrozenBatchNorm, group_count

CHOICES = get_args(Choice)
FIX = 'assay.models.compat.replace_batchnorm(model, "group")'
# (BatchNorm class, shape of one record without channels)
LAYERS = [
    (nn.BatchNorm1d, ()),
    (nn.BatchNorm1d, (6,)),
    (nn.BatchNorm2d, (3, 4)),
    (nn.BatchNorm2d, (1, 1)),
    (nn.BatchNorm3d, (2, 3, 2)),
    (nn.SyncBatchNorm, ()),
    (nn.SyncBatchNorm, (3, 4)),
]


def trained(layer: _BatchNorm) -> _BatchNorm:
    """Weights and running statistics that are not the initial ones."""
    with torch.no_grad():
        if layer.affine:
            layer.weight.uniform_(0.5, 2)
            layer.bias.normal_()
        if layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return layer


class Net(nn.Module):
    """Nested BatchNorm with a frozen one among them, as in a pretrained network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.blocks = nn.Sequential(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=True)), nn.Conv2d(8, 8, 3))
        self.heads = nn.ModuleDict({"bn": nn.BatchNorm1d(8), "fc": nn.Linear(8, 2)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.conv(x)).mean((2, 3))
        out: torch.Tensor = self.heads["fc"](self.heads["bn"](x))
        return out


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("kind", "map_shape"), LAYERS)
@pytest.mark.parametrize("choice", CHOICES)
def test_replacement_runs_keeps_records_apart_and_is_not_constant(
    choice: Choice, kind: type[_BatchNorm], map_shape: tuple[int, ...], affine: bool
) -> None:
    torch.manual_seed(0)
    # The root itself is the BatchNorm. 6 channels: Opacus's gcd(32, C) = 2 leaves three to a group.
    old = trained(kind(6, affine=affine)).double().train()
    if choice == "instance" and kind in (nn.BatchNorm1d, nn.SyncBatchNorm):
        with pytest.raises(UnsupportedModelError, match=r"may see inputs \[B, C\]"):
            replace_batchnorm(old, choice)
        return
    new, changes = replace_batchnorm(old, choice)
    assert [change.path for change in changes] == [""]
    assert not isinstance(new, _BatchNorm)
    assert problems(new) == []
    if choice == "instance" and map_shape == (1, 1):
        return  # torch refuses one value per channel itself
    x = torch.randn(4, 6, *map_shape, dtype=torch.float64)
    y = new(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    # one record does not depend on the others, and alone or in no company at all it still runs
    torch.testing.assert_close(new(x[:1]), y[:1], rtol=0, atol=1e-12)
    if not (choice == "instance" and affine):  # torch's own InstanceNorm fails on no records
        assert new(x[:0]).shape == x[:0].shape
    # not zeroed: the output still tells the records apart, in every channel
    assert (y.flatten(1).std(0) > 1e-3).all()


@pytest.mark.parametrize("channels", [2, 3, 4, 7, 8, 16, 32, 48, 64, 72, 128])
@pytest.mark.parametrize("choice", ["group", "layer"])
def test_batchnorm1d_on_vectors_is_not_erased(choice: Choice, channels: int) -> None:
    # Opacus #567: GroupNorm(4, 4) in place of BatchNorm1d(4) put out zeros for every [B, C] input.
    torch.manual_seed(0)
    new, _ = replace_batchnorm(nn.Sequential(nn.BatchNorm1d(channels)), choice)
    x = torch.randn(4096, channels)
    y = new(x)
    assert y.abs().amax(0).min() > 0.5
    correlation = torch.corrcoef(torch.stack((x.flatten(), y.flatten())))[0, 1]
    # the least is two channels, where only the sign of their difference is left: 1/√π = 0.564 for normal x
    assert correlation > 0.5


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
@pytest.mark.parametrize("choice", ["group", "layer"])
def test_one_channel_without_a_map_is_refused(choice: Choice, kind: type[_BatchNorm]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^0: .*one channel.*Identity\(\)"):
        replace_batchnorm(nn.Sequential(kind(1)), choice)


@pytest.mark.parametrize("choice", CHOICES)
def test_named_choices_keep_parameters_flags_dtype(choice: Choice) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), trained(nn.BatchNorm2d(8, eps=1e-3)), nn.BatchNorm2d(8)).double()
    model[1].eval()
    model[1].weight.requires_grad_(False)
    new, _ = replace_batchnorm(model, choice)
    layer = new[1]  # type: ignore[index]
    assert torch.equal(layer.weight, model[1].weight)
    assert torch.equal(layer.bias, model[1].bias)
    assert layer.weight.dtype == torch.float64
    assert layer.weight.device.type == "cpu"
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (False, True)
    assert [m.training for m in new.modules()] == [m.training for m in model.modules()]
    assert layer.eps == 1e-3
    assert {name for name, _ in new.named_parameters()} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_given_model_is_untouched(choice: Choice) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    before = copy.deepcopy(model.state_dict())
    new, _ = replace_batchnorm(model, choice)
    assert type(model[1]) is nn.BatchNorm2d
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(1)
    for buffer in new.buffers():
        buffer.add_(1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_whole_network_trains_after_replacement() -> None:
    torch.manual_seed(0)
    new, changes = replace_batchnorm(Net(), "group")
    assert [change.path for change in changes] == ["blocks.0.0", "heads.bn"]
    check(new)
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    before = [p.clone() for p in new.parameters()]
    new(torch.randn(5, 2, 6, 6)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, b) for p, b in zip(new.parameters(), before, strict=True))


def test_report_reads_well() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8))
    new, changes = replace_batchnorm(model, "group")
    assert [str(change) for change in changes] == [f"1: {model[1]!r} → {new[1]!r}"]  # type: ignore[index]
    assert "GroupNorm(1, 8" in str(changes[0])
    assert str(Replacement(path="", old="A", new="B", note="why")) == "(the model itself): A → B; why"


def test_nothing_to_replace() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    new, changes = replace_batchnorm(model, "group")
    assert changes == []
    assert new is not model


def test_shared_layer_stays_shared() -> None:
    shared = nn.BatchNorm1d(4)
    new, changes = replace_batchnorm(nn.Sequential(shared, nn.Linear(4, 4), shared), "layer")
    assert new[0] is new[2]  # type: ignore[index]
    assert [change.path for change in changes] == ["0", "2"]
    assert not any(isinstance(module, _BatchNorm) for module in new.modules())


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    new, _ = replace_batchnorm(model, "group")
    assert new[0].weight is new[1].weight  # type: ignore[index]


class TestFrozen:
    @pytest.mark.parametrize("affine", [True, False])
    @pytest.mark.parametrize(("kind", "map_shape"), LAYERS)
    def test_equals_eval_mode_also_when_training(
        self, kind: type[_BatchNorm], map_shape: tuple[int, ...], affine: bool
    ) -> None:
        torch.manual_seed(0)
        old = trained(kind(6, affine=affine)).double()
        new, _ = replace_batchnorm(old, "frozen")
        x = torch.randn(3, 6, *map_shape, dtype=torch.float64)
        expected = old.eval()(x)
        torch.testing.assert_close(new.train()(x), expected, rtol=0, atol=0)
        torch.testing.assert_close(new.running_mean, old.running_mean, rtol=0, atol=0)

    def test_per_record_gradients_by_vmap(self) -> None:
        torch.manual_seed(0)
        layer, _ = replace_batchnorm(trained(nn.BatchNorm2d(4)).double(), "frozen")
        x = torch.randn(3, 4, 2, 2, dtype=torch.float64)
        state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}

        def loss(weight: torch.Tensor, record: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = functional_call(layer, {**state, "weight": weight}, record[None])
            return out.square().sum()

        per_record = vmap(grad(loss), in_dims=(None, 0))(layer.weight, x)
        layer(x).square().sum().backward()
        assert isinstance(layer.weight, nn.Parameter)
        torch.testing.assert_close(per_record.sum(0), layer.weight.grad)

    @pytest.mark.parametrize("counted", [0, 7])  # 0: statistics loaded without a count of batches
    def test_says_that_statistics_are_released(self, counted: int) -> None:
        layer = trained(nn.BatchNorm2d(4))
        layer.num_batches_tracked = torch.tensor(counted)
        _, changes = replace_batchnorm(layer, "frozen")
        assert "released without noise: they must come from public data" in str(changes[0])

    def test_says_that_statistics_are_initial(self) -> None:
        _, changes = replace_batchnorm(nn.BatchNorm2d(4), "frozen")
        assert "still the initial ones" in str(changes[0])

    def test_needs_statistics(self) -> None:
        model = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False))
        with pytest.raises(UnsupportedModelError, match=r"0: .*no running statistics to freeze"):
            replace_batchnorm(model, "frozen")
        with pytest.raises(ValueError, match="nothing to freeze"):
            FrozenBatchNorm(nn.BatchNorm2d(4, track_running_stats=False))


class TestOwnFunction:
    def test_result_takes_the_place_with_dtype_and_mode(self) -> None:
        model = nn.Sequential(nn.BatchNorm2d(6)).double().eval()
        new, changes = replace_batchnorm(model, lambda layer: nn.GroupNorm(3, layer.num_features))
        layer = new[0]  # type: ignore[index]
        assert isinstance(layer, nn.GroupNorm)
        assert layer.num_groups == 3
        assert layer.weight.dtype == torch.float64
        assert not layer.training
        assert "GroupNorm(3, 6" in str(changes[0])

    def test_without_parameters(self) -> None:
        new, changes = replace_batchnorm(
            nn.BatchNorm1d(1, affine=False, track_running_stats=False), lambda layer: nn.Identity()
        )
        assert isinstance(new, nn.Identity)
        assert len(changes) == 1

    def test_returning_the_old_layer_keeps_it(self) -> None:
        model = nn.Sequential(nn.BatchNorm2d(6), nn.BatchNorm2d(8))
        new, changes = replace_batchnorm(model, lambda layer: layer if layer.num_features == 6 else nn.Identity())
        assert [change.path for change in changes] == ["1"]
        assert isinstance(new[0], nn.BatchNorm2d)  # type: ignore[index]

    def test_several_layers_in_one_stay_one_line(self) -> None:
        _, changes = replace_batchnorm(nn.BatchNorm2d(4), lambda layer: nn.Sequential(nn.GroupNorm(1, 4), nn.ReLU()))
        assert "\n" not in str(changes[0])

    def test_must_return_a_module(self) -> None:
        with pytest.raises(ConfigError, match=r"with_ = None .*returns an nn\.Module \(0: BatchNorm2d"):
            replace_batchnorm(nn.Sequential(nn.BatchNorm2d(4)), lambda layer: None)  # type: ignore[arg-type,return-value]


def test_unknown_choice() -> None:
    with pytest.raises(ConfigError, match=r"with_ = 'batch' .*group, layer, instance, frozen"):
        replace_batchnorm(nn.BatchNorm2d(4), "batch")  # type: ignore[arg-type]


def test_lazy_batchnorm_must_know_its_channels_first() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls lazy modules experimental
        model = nn.Sequential(nn.LazyBatchNorm2d())
    assert "0: LazyBatchNorm2d uses statistics" in problems(model)[0]
    assert "made-up batch" in problems(model)[0]
    with pytest.raises(UnsupportedModelError, match="made-up batch"):
        replace_batchnorm(model, "group")
    model(torch.zeros(2, 4, 3, 3))
    new, _ = replace_batchnorm(model, "group")
    assert problems(new) == []


def test_batchnorm_with_its_own_forward_is_not_guessed_at() -> None:
    class BatchNormRelu(nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    with pytest.raises(UnsupportedModelError, match=r"0: BatchNormRelu .*forward of its own"):
        replace_batchnorm(nn.Sequential(BatchNormRelu(4)), "group")

    class Renamed(nn.BatchNorm2d):
        pass

    assert isinstance(replace_batchnorm(Renamed(4), "group")[0], nn.GroupNorm)


class TestCheck:
    def test_names_every_layer_and_the_fix_once(self) -> None:
        with pytest.raises(UnsupportedModelError) as caught:
            check(Net())
        message = str(caught.value)
        assert "  blocks.0.0: BatchNorm2d uses statistics of the whole batch\n" in message
        assert "  heads.bn: BatchNorm1d uses statistics of the whole batch\n" in message
        assert message.count(FIX) == 1
        assert all(FIX in line for line in problems(Net()))

    @pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
    def test_batchnorm_by_mode(self, kind: type[_BatchNorm]) -> None:
        assert len(problems(kind(4))) == 1
        assert problems(kind(4))[0].startswith(f"(the model itself): {kind.__name__}")
        assert problems(kind(4).eval()) == []
        # torch falls back on the batch's statistics in eval mode if it has no others
        assert len(problems(kind(4, track_running_stats=False).eval())) == 1

    def test_verdict_agrees_with_behaviour(self) -> None:
        # The claim behind `problems`: flagged exactly if other records change a record's output, or a buffer.
        torch.manual_seed(0)
        candidates = [
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4).eval(),
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.BatchNorm2d(4, track_running_stats=False).eval(),
            nn.InstanceNorm2d(4),
            nn.InstanceNorm2d(4, track_running_stats=True),
            nn.InstanceNorm2d(4, track_running_stats=True).eval(),
            nn.GroupNorm(2, 4),
            nn.LayerNorm((3, 3)),
            nn.LocalResponseNorm(2),
            replace_batchnorm(nn.BatchNorm2d(4), "frozen")[0],
        ]
        x = torch.randn(3, 4, 3, 3)
        for module in candidates:
            flagged = bool(problems(module))
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            together = module(x)[0]
            moved = any(not torch.equal(b, buffers[name]) for name, b in module.named_buffers())
            mixed = not torch.allclose(module(x[:1])[0], together)
            assert flagged == (moved or mixed), module

    def test_instancenorm_that_keeps_statistics(self) -> None:
        model = nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True))
        assert problems(model) == [
            "0: InstanceNorm2d keeps running statistics of the records, without noise; "
            "construct it with track_running_stats=False"
        ]

    def test_scripted_batchnorm_is_seen(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit.script is deprecated, its models are still about
            scripted = torch.jit.script(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
        assert problems(scripted)[0].startswith("1: BatchNorm2d uses statistics of the whole batch")
        assert "before torch.jit.script" in problems(scripted)[0]
        assert problems(scripted.eval()) == []

    def test_known_layer_of_another_package(self) -> None:
        class MinibatchStdDev(nn.Module):
            pass

        for model in (nn.Sequential(MinibatchStdDev()), nn.Sequential(MinibatchStdDev()).eval()):
            assert problems(model)[0].startswith("0: MinibatchStdDev uses statistics of the whole batch")


@given(channels=st.integers(1, 4096), smallest=st.integers(1, 64))
@settings(max_examples=300, deadline=None)
def test_group_count(channels: int, smallest: int) -> None:
    groups = group_count(channels, smallest_group=smallest)
    fitting = [g for g in range(1, 33) if channels % g == 0 and channels // g >= smallest]
    assert groups == max(fitting, default=1)
