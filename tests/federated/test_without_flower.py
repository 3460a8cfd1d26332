"""Without Flower nothing breaks until an engine is asked for that needs it, and then the package is named."""

import subprocess
import sys

import pytest

CALLS = {
    "simulation": "SimulationCarrier({}, 1, log=Path('unused'))",
    "deploy": "DeployCarrier({}, 1, log=Path('unused'), superlink='127.0.0.1:1', certificates=Path('unused'))",
}


@pytest.mark.parametrize("engine", CALLS)
def test_the_package_is_named(engine, tmp_path):
    carrier = f"from assay.federated.transport.{engine} import *"
    program = f"import sys; sys.modules['flwr'] = None\n{carrier}\nfrom pathlib import Path\n{CALLS[engine]}"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "pip install 'flwr[simulation]==1.41.*'" in ended.stderr
    assert not list(tmp_path.iterdir())
