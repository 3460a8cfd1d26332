"""Property tests draw the same examples everywhere, and have no deadline: machines differ. The command, run in this process; the noise that was added."""

import sys

import pytest
from hypothesis import settings

from assay.cli import main
from assay.mechanisms.gaussian import Gaussian

settings.register_profile("assay", deadline=None, derandomize=True)
settings.load_profile("assay")


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
