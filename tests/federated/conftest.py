"""The command line, in this process and in one of its own."""

from tests.cli.conftest import assay, process

__all__ = ["assay", "process"]
