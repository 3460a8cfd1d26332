"""Committed pictures show committed results."""

import json
from pathlib import Path

from tools import three

ROOT = Path(three.__file__).parents[1]


def test_the_picture_of_all_methods_is_what_its_command_draws():
    rows = json.loads((ROOT / three.READ).read_text(encoding="utf-8"))["methods"]
    assert (ROOT / three.WRITTEN).read_text(encoding="utf-8") == three.figure(rows) + "\n"
    assert len(rows) > 20
    assert all(row["audited"] is None or float(row["audited"]) <= float(row["verified"]) for row in rows)
