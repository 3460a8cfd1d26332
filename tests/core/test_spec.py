"""Parts as people type them."""

import pytest

from assay import ConfigError, methods
from assay.methods import denoise, encode


@pytest.mark.parametrize(
    "text",
    [
        "laplacian",
        "laplacian:sigma=2.5",
        "laplacian:sigma=3.0,over=tensor",
        "bayes:nu=0.02,emit=mean,priors=learnt",
        "lowpass:rho=0.25",
    ],
)
def test_a_denoiser_reads_back_as_it_was_written(text):
    assert denoise.describe(denoise.parse(text)) == text


@pytest.mark.parametrize("text", ["sign", "sign:tau=0.01", "spectral:domain=full,rho=0.5"])
def test_an_encoding_reads_back_as_it_was_written(text):
    assert encode.describe(encode.parse(text)) == text


def test_numbers_may_be_typed_as_whole_ones():
    assert denoise.parse("laplacian:sigma=1") == denoise.parse("laplacian:sigma=1.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wavelet:sigma=1", ["denoise", "wavelet", "laplacian:sigma=1.0", "bayes:nu=0.01"]),
        ("laplacian:sigma", ["denoise", "key=value"]),
        ("laplacian:sigma=1,sigma=2", ["denoise", "each once"]),
        ("laplacian:width=3", ["laplacian", "width", "sigma, over"]),
        ("laplacian:sigma=wide", ["laplacian sigma", "wide", "a number"]),
        ("laplacian:sigma=-1", ["laplacian sigma", "-1"]),
        ("lowpass:rho=0", ["lowpass rho", "0.0", "above 0"]),
    ],
)
def test_what_cannot_be_read_is_named(text, said):
    with pytest.raises(ConfigError) as error:
        denoise.parse(text)
    assert all(part in str(error.value) for part in said), str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gradp", {}, ["method", "gradp", "gredp"]),
        ("gredp", {"variant": "sounder"}, ["variant", "sounder", "sound, published"]),
        ("gredp", {"rank": "3"}, ["gredp option", "rank", "noise_form"]),
        ("gredp", {"groups": "many"}, ["groups", "many", "whole number"]),
        ("gredp", {"groups": 0}, ["groups", "1 or above"]),
        ("gredp", {"variant": "published", "noise_form": "imaginary"}, ["noise_form", "imaginary", "complex, real"]),
        ("gredp", {"variant": "published", "noise_form": "0.5/1.5"}, ["noise_form", "between 0 and 1"]),
        ("gredp", {"noise_form": "real"}, ["noise_form", "real", "sound"]),
        ("gredp", {"domain": "wavelet"}, ["domain", "wavelet", "kernel, full"]),
        ("dpsgd", {"variant": "published"}, ["variant", "sound for dpsgd"]),
        ("dpsgd", {"groups": 3}, ["dpsgd option", "groups", "none"]),
        ("lssgd", {"sigma": "-1"}, ["sigma", "-1"]),
        ("lssgd", {"claim": "hope"}, ["claim", "hope", "theorem, moments"]),
        ("discrete", {"tau": "-1"}, ["tau", "-1"]),
    ],
)
def test_bad_options_of_a_method_are_named(name, options, said):
    with pytest.raises(ConfigError) as error:
        methods.get(name, **options)
    assert all(part in str(error.value) for part in said), str(error.value)


def test_options_are_what_differs_from_the_method():
    method = methods.get("gredp", variant="published", groups="5")
    assert methods.options(method) == {"variant": "published", "groups": 5}
    assert methods.get("gredp", **methods.options(method)) == method
    assert methods.options(methods.get("lsadam")) == {}


def test_a_method_takes_its_layers_from_the_model_and_contradicts_a_wrong_number():
    assert methods.options(methods.get("gredp").for_layers(["a", "b"])) == {"groups": 2}
    assert methods.get("dpsgd").for_layers(["a", "b"]) == methods.get("dpsgd")
    with pytest.raises(ConfigError, match="2: the model has 2 layers"):
        methods.get("gredp", groups=5).for_layers(["a", "b"])
