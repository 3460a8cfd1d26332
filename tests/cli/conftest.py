"""Run the command in this process (fast) or as a process of its own (real)."""

import subprocess
import sys

import pytest

from assay.cli import main


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


@pytest.fixture
def process(tmp_path):
    """Start `python -m assay ...` in an empty folder."""
    started = []

    def start(*arguments):
        child = subprocess.Popen(
            [sys.executable, "-m", "assay", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()
