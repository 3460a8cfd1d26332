"""Property tests draw the same examples everywhere, and have no deadline: machines differ. The command, run in this process."""

import sys

import pytest
from hypothesis import settings

from assay.cli import main

settings.register_profile("assay", deadline=None, derandomize=True)
settings.load_profile("assay")


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
