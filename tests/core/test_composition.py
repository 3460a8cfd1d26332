"""Parts that go together do, from Python and the command line; those that make no sense are refused with a reason."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Optimizer, Plan, Training, fit, methods
from assay.gradients import clipping as clip
from assay.methods import denoise, encode


def plan(method="dpsgd", rule="flat:1.0", encoded=(), denoised=(), micro_batch=1, **options) -> Plan:
    return Plan(
        records=120,
        batch_size=20,
        steps=6,
        noise_multiplier=1.0,
        delta=1e-3,
        method=methods.get(method, **options),
        clip=clip.parse(rule),
        encode=encode.parse_all(encoded),
        denoise=denoise.parse_all(denoised),
        micro_batch=micro_batch,
    )


def train(made: Plan, optimizer="sgd"):
    torch.manual_seed(0)
    y = torch.arange(120) % 3
    data = TensorDataset(torch.randn(120, 1, 6, 6), y)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    return fit(model, data, plan=made, training=Training(optimizer=Optimizer(name=optimizer, lr=0.01), seed=1))


@pytest.mark.parametrize(
    ("made", "optimizer"),
    [
        (plan("gredp", "per-layer:1.0", denoised=["laplacian:sigma=1"]), "adam"),
        (plan("gredp", "per-layer:1.0", denoised=["laplacian:sigma=1"], domain="full"), "adamw"),
        (plan(denoised=["bayes:nu=0.01,emit=mean,priors=learnt"]), "sgd"),
        (plan(rule="per-layer:1.0", encoded=["spectral:rho=0.5"]), "sgd"),
        (plan(rule="per-layer:1.0", encoded=["spectral:domain=full,rho=0.5"], micro_batch=2), "sgd"),
        (plan(rule="adaptive:1.0", encoded=["sign:tau=0.001"], denoised=["bayes", "laplacian:over=tensor"]), "sgd"),
        (plan("lssgd", "auto:1.0", encoded=["sign"], micro_batch=3), "sgd"),
        (plan("spectral", "per-layer:1.0", denoised=["laplacian:sigma=2"], variant="published"), "sgd"),
    ],
    ids=str,
)
def test_parts_combine_and_cost_what_the_noise_says(made, optimizer):
    result = train(made, optimizer)
    assert result.record["encode"] == [encode.describe(part) for part in made.encode]
    assert result.record["denoise"] == [denoise.describe(part) for part in made.denoise]
    if made.method.variant == "sound":
        plain = plan(rule="flat:1.0", micro_batch=made.micro_batch)
        assert result.epsilon == pytest.approx(plain.epsilon(), rel=1e-9), "encoding and denoising change no ε"
    assert all(part in result.statement for part in (*result.record["encode"], *result.record["denoise"]))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: plan(denoised=["laplacian", "bayes"]), ["denoise", "before Laplacian"]),
        (lambda: plan(denoised=["bayes", "bayes"]), ["denoise", "before Bayes"]),
        (lambda: plan("spectral", "per-layer:1.0", denoised=["bayes"]), ["denoise", "before LowPass"]),
        (
            lambda: plan(
                "gredp", "per-layer:1.0", denoised=["bayes"], variant="published", noise_form="real", groups=2
            ),
            ["denoise", "noise of this method"],
        ),
        (lambda: plan(encoded=["sign", "sign"]), ["encode", "once"]),
        (lambda: plan("discrete", encoded=["sign"]), ["encode", "once"]),
        (lambda: plan(encoded=["spectral:rho=0.5", "spectral:rho=0.5"]), ["encode", "once"]),
        (lambda: plan("spectral", "per-layer:1.0", encoded=["spectral"]), ["encode", "already"]),
        (lambda: plan(encoded=["sign", "spectral:domain=full"]), ["encode", "one of the two"]),
        (lambda: plan("gredp", "flat:1.0"), ["clip", "per-layer:C with gredp"]),
        (lambda: plan(rule="assumed:1.0"), ["clip", "assumed", "a rule that clips"]),
        (lambda: plan("lssgd", rule="assumed:1.0"), ["clip", "assumed", "a rule that clips"]),
    ],
)
def test_nonsense_is_refused_with_a_reason(made, said, tmp_path):
    with pytest.raises(ConfigError) as error:
        fit(
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
            TensorDataset(torch.zeros(120, 2), torch.zeros(120).long()),
            plan=made(),
            out=tmp_path / "run",
        )
    assert all(part in str(error.value) for part in said), str(error.value)
    assert not (tmp_path / "run").exists()
