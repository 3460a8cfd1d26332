from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_other_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data directory of this machine is looked in; the user's cache is an empty one, returned."""
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    monkeypatch.setattr("assay.data.locate._SYSTEM_FOLDERS", (tmp_path / "system",))
    return tmp_path / "cache-home" / "assay"
