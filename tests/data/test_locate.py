from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from assay.data import load
from assay.data.catalog import available, describe
from assay.data.locate import cache_directory, find, places, require
from assay.errors import ConfigError, DataError

from .tiny import Tiny


def test_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_other_places: Path) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "variable"))
    expected = []
    for label, directory in [
        ("system folder", tmp_path / "system"),
        ("user cache", no_other_places),
        ("$ASSAY_DATA", tmp_path / "variable"),
        ("--data-dir", tmp_path / "explicit"),
    ]:
        expected.append((label, Tiny.write(directory)))
        found = require(Tiny.info, tmp_path / "explicit")
        assert (found.place.label, found.folder) == expected[-1]


def test_cache_is_that_of_the_desktop_standard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "assay"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == tmp_path / ".cache" / "assay"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "assay"


def test_the_system_folder_is_that_of_debian() -> None:
    assert Path("/usr/share/datasets/fashion-mnist") in [
        place.path / describe("fashion-mnist").folders[0] for place in places(None) if place.path is not None
    ]


def test_files_may_be_in_either_form_and_any_known_folder(tmp_path: Path, no_other_places: Path) -> None:
    folder = Tiny.write(tmp_path, "Tiny/raw")
    (folder / "a").unlink()
    (folder / "a.gz").write_bytes(gzip.compress(Tiny.contents["a"]))
    found = require(Tiny.info, tmp_path)
    assert found.folder == folder
    assert list(found.contents()) == list(Tiny.contents.values())


def test_an_incomplete_place_is_passed_over(tmp_path: Path, no_other_places: Path) -> None:
    (Tiny.write(tmp_path) / "b").unlink()
    assert find(Tiny.info, places(tmp_path)) is None
    Tiny.write(no_other_places)
    assert require(Tiny.info, tmp_path).place.label == "user cache"


def test_a_corrupt_file_is_an_error_even_if_another_place_has_a_good_one(tmp_path: Path, no_other_places: Path) -> None:
    (Tiny.write(tmp_path) / "b").write_bytes(b"something else")
    Tiny.write(no_other_places)
    with pytest.raises(DataError, match=str(tmp_path / "tiny" / "b")):
        list(require(Tiny.info, tmp_path).contents())


def test_nothing_found_says_where_it_looked_and_how_to_supply_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_other_places: Path
) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "variable"))
    (tmp_path / "explicit" / "mnist").mkdir(parents=True)
    (tmp_path / "explicit" / "mnist" / "t10k-labels-idx1-ubyte").touch()
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path / "explicit")
    message = str(caught.value)
    for directory in (
        tmp_path / "explicit" / "mnist",
        tmp_path / "variable" / "MNIST" / "raw",
        no_other_places / "mnist",
        tmp_path / "system" / "mnist",
    ):
        assert str(directory) in message
    for help_ in ("assay data get mnist", "--data-dir", "ASSAY_DATA", "train-images-idx3-ubyte[.gz]"):
        assert help_ in message
    assert "not train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte" in message


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "adult"])
def test_a_wrong_file_of_a_known_data_set_is_refused(name: str, tmp_path: Path, no_other_places: Path) -> None:
    info = describe(name)
    (tmp_path / info.folders[0]).mkdir()
    for known in info.files:
        (tmp_path / info.folders[0] / known.forms[-1]).write_bytes(b"short")
    with pytest.raises(DataError, match="looks truncated") as caught:
        load(name, tmp_path)
    first = info.files[0]
    assert (first.gz or first.content).sha256 in str(caught.value)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="digits, imdb, adult, cifar10, cifar100, fashion-mnist, mnist") as caught:
        load("imagenet")
    assert (caught.value.field, caught.value.value) == ("data", "imagenet")


def test_catalogue_is_complete() -> None:
    for info in available():
        assert bool(info.files) == bool(info.folders) == bool(info.origins)
        for known in info.files:
            for mark in (known.content, known.gz):
                assert mark is None or (len(bytes.fromhex(mark.sha256)) == 32 and mark.size > 0)
