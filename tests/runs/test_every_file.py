"""One flipped bit in any file of a run is refused, or changes nothing that is read."""

import shutil

import pytest

from assay import AssayError, runs
from assay._util import signatures
from assay.attacks.storage import read_attacks, write_attacks
from assay.audit.aside import read_aside, write_aside
from assay.runs.directory import RunDirectory

from .conftest import flipped

FLIPS = 120  # of a file, spread evenly over its bytes and over the places in a byte
AUDIT = {
    "epsilon": 0.25,
    "confidence": 0.95,
    "verdict": "consistent",
    "sentence": "nothing was found",
    "how": "canaries",
    "estimator": "e",
    "assumption": "",
}
TRAIN = ("train", "--data", "digits", "--model", "logistic", "--epochs", 0.2, "--batch-size", 256, "--epsilon", 2)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A run that has every kind of file: replaced an earlier one, released a mean, was attacked, audited and signed."""
    from assay.cli import app

    folder = tmp_path_factory.mktemp("complete")
    for more in ((), ("--center", "mean:noise=40", "--force")):
        app([*map(str, TRAIN), *more, "--out", str(folder / "run")], standalone_mode=False)
    directory = RunDirectory(folder / "run")
    write_attacks(directory, [{"attack": "loss", "auc": 0.5}])
    write_aside(directory, AUDIT)
    signatures.create_pair(folder / "key")
    runs.sign(directory.path, folder / "key")
    return folder


def test_one_flipped_bit_of_any_file_is_refused_or_harmless(complete, tmp_path):
    path = shutil.copytree(complete / "run", tmp_path / "run")
    directory, key = RunDirectory(path), signatures.read_public(complete / "key.pub")

    def seen():
        found = runs.verify(path, key=key)
        if not found.holds:
            raise AssayError(f"refused: {found.failed}")
        return found.checks, read_attacks(directory), read_aside(directory), runs.statement_of(path)

    whole = seen()
    files = sorted(file for file in path.rglob("*") if file.is_file())
    names = {file.relative_to(path).as_posix() for file in files}
    assert names >= {"attacks.json", "audits.json", "ledgers/001.jsonl", "signature.json", "stage.safetensors"}
    for file in files:
        bits = 8 * file.stat().st_size
        stride = max(1, bits // FLIPS) | 1  # odd: it meets every place in a byte
        refused = 0
        with flipped(file) as flip:
            for bit in range(0, bits, stride):
                flip(bit)
                try:
                    found = seen()
                except AssayError:
                    refused += 1
                else:
                    assert found == whole, f"{file.name}: bit {bit} changed what is read"
        assert refused > 0, f"{file.name} is looked at by nobody"


@pytest.mark.parametrize(("name", "read"), [("attacks.json", read_attacks), ("audits.json", read_aside)])
def test_no_flipped_bit_of_what_stays_with_the_holder_is_believed(complete, tmp_path, name, read):
    """Every bit; `test_damage` has those of ledger, run.json, record, statement, model and checkpoint."""
    directory = RunDirectory(shutil.copytree(complete / "run", tmp_path / "run"))
    file, whole = directory.path / name, read(directory)
    with flipped(file) as flip:
        for bit in range(8 * file.stat().st_size):
            flip(bit)
            try:
                found = read(directory)
            except AssayError:
                continue
            assert found == whole, f"bit {bit} changed what is read"
