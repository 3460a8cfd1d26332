"""Property tests draw the same examples everywhere, and have no deadline: machines differ.

The command, run in this process; the noise that was added.
"""

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings


def _use_no_broken_tiles():
    """Some virtual machines announce AMX tiles and kill a process that uses them, as torch does for bf16: do without
    them there.
    """
    cpu = Path("/proc/cpuinfo")
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not cpu.exists() or "amx_tile" not in cpu.read_text():
        return
    product = "import torch; torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()"
    if subprocess.run([sys.executable, "-c", product], capture_output=True, check=False).returncode < 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"


def _use_a_cache_of_its_own():
    """What a user, or another version of Assay, has in the cache or knows of runs must not decide a test. Fonts stay
    where they are.
    """
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("MPLCONFIGDIR", str(usual / "matplotlib"))
    os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = folder = tempfile.mkdtemp(prefix="assay-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


gc.disable()  # until all tests are collected: nothing of that is garbage
_use_a_cache_of_its_own()
_use_no_broken_tiles()  # oneDNN reads the setting once, when torch is first used

from assay.cli import main  # noqa: E402
from assay.mechanisms.gaussian import Gaussian  # noqa: E402

settings.register_profile("assay", deadline=None, derandomize=True)
settings.load_profile("assay")


def pytest_collection_finish():
    """Modules and tests stay to the end: no later search for garbage goes through them again."""
    gc.enable()
    gc.freeze()


@pytest.fixture
def noises(monkeypatch):
    """The noise multipliers of all Gaussian releases of gradients from here on, in order."""
    seen, release = [], Gaussian.release

    def kept(self, grads, stream):
        if any(grads.total):  # not the loss, which has no name; nor a release of nothing, which states an event
            seen.append(self.multiplier)
        return release(self, grads, stream)

    monkeypatch.setattr(Gaussian, "release", kept)
    return seen


@pytest.fixture
def assay(monkeypatch, capsys):
    """assay("train", "--out", ...) -> (exit code, standard output, standard error)"""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
