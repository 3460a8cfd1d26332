"""A processor that announces tiles and kills who uses them: bf16 is refused before a run begins."""

import pytest
import torch

from assay import ConfigError
from assay.training.preflight import check_precision

CPU = torch.device("cpu")
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def announced(tmp_path, monkeypatch):
    """The description of a processor with tiles."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    path = tmp_path / "cpuinfo"
    path.write_text("flags : fpu avx512f amx_bf16 amx_tile\n")
    return path


def test_a_process_that_is_killed_is_a_config_error(announced):
    with pytest.raises(ConfigError, match=r"float32 on this machine.*ONEDNN_MAX_CPU_ISA"):
        check_precision("bf16", CPU, program=KILLED, processor=announced)


def test_what_works_or_is_not_used_is_left_alone(announced, tmp_path, monkeypatch):
    check_precision("bf16", CPU, program="raise SystemExit(3)", processor=announced)
    check_precision("float32", CPU, program=KILLED, processor=announced)
    check_precision("bf16", torch.device("cuda"), program=KILLED, processor=announced)
    check_precision("bf16", CPU, program=KILLED, processor=tmp_path / "none")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    check_precision("bf16", CPU, program=KILLED, processor=announced)
