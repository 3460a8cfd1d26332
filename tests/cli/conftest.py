"""The command as a process of its own (real); in this process (fast) it is a fixture of all tests."""

import subprocess
import sys

import pytest


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
