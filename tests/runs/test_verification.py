"""`assay sign` and `assay verify`: what was edited, forged, swapped or left out is found, on a copy of the run."""

import base64
import json
import shutil

import pytest

import assay as library
from assay import AssayError, ConfigError, runs
from assay._util import seals, signatures
from assay.runs.card import card
from assay.runs.statement import statement

from .conftest import flipped

ALL = {"record", "run.json", "ledger", "plan", "epsilon", "statement", "signature"}


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "officer"
    signatures.create_pair(path)
    return path


@pytest.fixture(scope="module")
def signed(finished, key, tmp_path_factory):
    path = shutil.copytree(finished, tmp_path_factory.mktemp("signed") / "run")
    runs.sign(path, key)
    return path


@pytest.fixture
def copy(signed, tmp_path):
    """Elsewhere, as an officer has it."""
    return shutil.copytree(signed, tmp_path / "copy")


def failed(path, **how):
    return {check.name for check in runs.verify(path, **how).failed}


def reseal(path, record, text=None, about=None):
    """Write record and statement with digests that agree, as somebody would who knows how they are made.

    Without a text, the statement is the one that the record makes.
    """
    made = {"statement.md": (statement, text), "README.md": (card, about)}
    for name in record["files"].keys() - made.keys():
        record["files"][name] = seals.of_file(path / name)
    for name, (make, given) in made.items():
        (path / name).write_text(make(record) if given is None else given)
        record["files"][name] = seals.of_file(path / name)
    (path / "record.json").write_text(json.dumps(seals.sealed(record)))


def record_of(path):
    return json.loads((path / "record.json").read_text())


def test_a_signed_run_holds_wherever_it_is_copied(copy, key):
    found = runs.verify(copy, key=f"{key}.pub")
    assert found.holds
    assert {check.name for check in found.checks if check.holds} >= ALL
    assert found.signer == signatures.read_public(f"{key}.pub")
    assert found.delta == 1e-3
    assert found.epsilon == pytest.approx(record_of(copy)["epsilon"]["verified"], rel=1e-6)
    assert runs.verify(copy).holds, "with the key that the signature names"


def test_an_unsigned_run_holds_but_is_not_signed(finished, key):
    found = runs.verify(finished)
    assert found.holds
    assert found.signer is None
    (said,) = [check for check in found.checks if check.name == "signature"]
    assert said.holds is None
    assert failed(finished, key=f"{key}.pub") == {"signature"}, "a key asks for a signature"


def edit_statement(path):
    text = (path / "statement.md").read_text()
    (path / "statement.md").write_text(text.replace("spent ε = ", "spent ε = 0.5 and not "))


def edit_statement_and_digest(path):
    text = (path / "statement.md").read_text()
    head = text.index("spent ε = ") + len("spent ε = ")
    reseal(path, record_of(path), text[:head] + "0.5" + text[text.index(" at δ") :])


def edit_curve_of_statement(path):
    text = (path / "statement.md").read_text()
    lines = text.splitlines()
    row = lines[2 + next(i for i, line in enumerate(lines) if line.startswith("| δ |"))]
    reseal(path, record_of(path), text.replace(row, row.rsplit("|", 2)[0] + "| 0.01 |"))


def edit_record(path):
    record = record_of(path)
    record["epsilon"]["verified"] = 0.5
    reseal(path, record)


def edit_curve_of_record(path):
    record = record_of(path)
    record["epsilon"]["curve"][-1]["epsilon"] = 0.01
    reseal(path, record)


def edit_true_positives_of_record(path):
    record = record_of(path)
    record["epsilon"]["tradeoff"]["rates"][1]["true_positives"] = 0.011
    reseal(path, record)


def edit_mu_of_record(path):
    record = record_of(path)
    record["epsilon"]["tradeoff"]["mu"] /= 2
    reseal(path, record)


def edit_noise_of_record(path):
    record = record_of(path)
    record["noise_multiplier"] *= 2
    reseal(path, record)


def edit_delta(path):
    record = record_of(path)
    record["epsilon"]["delta"] = 1e-9
    reseal(path, record)


def rewrite_ledger(path, change):
    chain, lines = "", []
    for line in (path / "ledger.jsonl").read_text().splitlines():
        plain = {name: value for name, value in json.loads(line).items() if name != "digest"}
        change(plain)
        text, chain = seals.chained(plain, chain)
        lines.append(text.decode())
    (path / "ledger.jsonl").write_text("\n".join(lines) + "\n")


def louder(line):
    """Three times the noise, in whatever the line says."""
    if "event" in line:
        text = json.dumps(line["event"]).replace('"noise_multiplier": 2.0', '"noise_multiplier": 6.0')
        assert text != json.dumps(line["event"]) or not line["steps"]
        line["event"] = json.loads(text)


def edit_ledger(path):
    rewrite_ledger(path, louder)


def edit_ledger_record_and_statement(path):
    rewrite_ledger(path, louder)
    record = record_of(path)
    record["epsilon"]["verified"] = library.Plan(
        records=40, batch_size=10, steps=8, noise_multiplier=6.0, delta=1e-3
    ).epsilon()
    record["epsilon"]["curve"] = []
    reseal(path, record)


def edit_everything(path):
    """All files agree in the end: only a signature can show that they are not what was signed."""
    spec = json.loads((path / "run.json").read_text())
    spec["plan"]["noise_multiplier"] = 6.0
    spec = seals.sealed({name: value for name, value in spec.items() if name != "digest"})
    (path / "run.json").write_text(json.dumps(spec))

    def change(line):
        louder(line)
        if "run" in line:
            line["run"] = spec["digest"]

    rewrite_ledger(path, change)
    record = record_of(path)
    record["noise_multiplier"] = 6.0
    record["epsilon"]["verified"] = runs.verify(path).epsilon
    record["epsilon"]["curve"] = []
    reseal(path, record)


def swap_model(path):
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1] + b"\x01")


def swap_model_and_digest(path):
    swap_model(path)
    reseal(path, record_of(path))


def edit_card(path):
    text = (path / "README.md").read_text()
    (path / "README.md").write_text(text.replace("spent ε = ", "spent ε = 0.5 and not "))


def edit_card_and_digest(path):
    edit_card(path)
    reseal(path, record_of(path), about=(path / "README.md").read_text())


FORGERIES = {
    edit_card: {"file README.md", "model card", "signature"},
    edit_card_and_digest: {"model card", "signature"},
    edit_statement: {"file statement.md", "statement", "signature"},
    edit_statement_and_digest: {"statement", "signature"},
    edit_curve_of_statement: {"statement", "signature"},
    edit_record: {"epsilon", "signature"},
    edit_curve_of_record: {"epsilon", "signature"},
    edit_true_positives_of_record: {"epsilon", "signature"},
    edit_mu_of_record: {"epsilon", "signature"},
    edit_noise_of_record: {"plan", "signature"},
    edit_delta: {"epsilon", "signature"},
    edit_ledger: {"file ledger.jsonl", "plan", "epsilon", "signature"},
    edit_ledger_record_and_statement: {"plan", "signature"},
    edit_everything: {"signature"},
    swap_model: {"file model.safetensors", "signature"},
    swap_model_and_digest: {"signature"},
}


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_what_was_forged_is_named(assay, copy, key, forgery):
    forgery(copy)
    assert failed(copy, key=f"{key}.pub") == FORGERIES[forgery]
    code, out, err = assay("verify", copy, "--key", f"{key}.pub")
    assert code == 1
    assert out.count("FAILS") == len(FORGERIES[forgery])
    assert "All of it agrees" not in out
    assert "do not rely on its ε" in err
    if FORGERIES[forgery] != {"signature"}:
        with pytest.raises(AssayError, match="not signed"):
            runs.sign(copy, key)


@pytest.mark.parametrize(
    "forgery", [edit_statement_and_digest, edit_record, edit_delta, edit_ledger], ids=lambda f: f.__name__
)
def test_what_was_forged_is_not_shown(assay, copy, forgery):
    forgery(copy)
    for more in ((), ("--json",)):
        code, out, err = assay("show", copy, *more)
        assert code == 1
        assert not out
        assert "statement.md" in err or "record.json" in err


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ledger.jsonl", {"ledger", "file ledger.jsonl", "signature"}),
        ("statement.md", {"file statement.md", "statement", "signature"}),
        ("model.safetensors", {"file model.safetensors", "signature"}),
        ("run.json", {"run.json", "file run.json", "statement", "signature"}),
        ("record.json", {"record", "signature"}),
        ("signature.json", {"signature"}),
    ],
)
def test_a_missing_file_is_named(copy, key, name, found):
    (copy / name).unlink()
    assert failed(copy, key=f"{key}.pub") >= found - {"statement"}
    assert not runs.verify(copy, key=f"{key}.pub").holds


def test_another_key_is_not_taken(assay, copy, tmp_path):
    signatures.create_pair(tmp_path / "other")
    assert failed(copy, key=tmp_path / "other.pub") == {"signature"}
    with pytest.raises(ConfigError, match="has signed the run there already"):
        runs.sign(copy, tmp_path / "other")
    runs.sign(copy, tmp_path / "other", out=tmp_path / "second.json")
    assert runs.verify(copy, key=tmp_path / "other.pub", signature=tmp_path / "second.json").holds
    assert assay("sign", copy, "--key", tmp_path / "other", "--force")[0] == 0
    assert runs.verify(copy, key=tmp_path / "other.pub").holds


def decoded(content):
    """The last letter of base64 has bits that stand for nothing."""
    return {**content, "signature": base64.b64decode(content["signature"])}


def test_no_flipped_bit_of_a_signature_is_believed(copy, key):
    path = copy / "signature.json"
    public = signatures.read_public(f"{key}.pub")
    said = decoded(runs.signing.read_signature(path).content)
    directory = runs.directory.RunDirectory(copy)
    with flipped(path) as flip:
        for bit in range(8 * path.stat().st_size):
            flip(bit)
            try:
                found = runs.signing.read_signature(path)
                found.check(directory, public)
            except AssayError:
                continue
            assert decoded(found.content) == said, "another way to write the same"


def test_commands_sign_and_verify(assay, finished, key, tmp_path):
    path = shutil.copytree(finished, tmp_path / "m[x] y")
    code, out, _ = assay("verify", path)
    assert code == 0
    assert "not signed" in out
    code, out, _ = assay("sign", path, "--key", key)
    assert code == 0
    assert signatures.read_public(f"{key}.pub").fingerprint in out
    code, out, _ = assay("verify", path)
    assert code == 0
    assert "--key" in out, "who signed is not known without it"
    code, out, _ = assay("verify", path, "--key", f"{key}.pub", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["holds"]
    assert {check["name"] for check in found["checks"]} >= ALL


def test_bad_input_is_refused_by_name(assay, copy, unfinished, key, tmp_path):
    for words, said in (
        (("verify", tmp_path), "directory of a run"),
        (("verify", copy, "--key", key), "holds a private key"),
        (("verify", copy, "--key", tmp_path / "none"), "none"),
        (("verify", copy, "--signature", tmp_path / "none"), "assay sign"),
        (("sign", copy, "--key", f"{key}.pub"), "officer.pub"),
        (("sign", tmp_path, "--key", key), "directory of a run"),
    ):
        code, _, err = assay(*words)
        assert code == 2, words
        assert said in err
    code, _, err = assay("sign", unfinished, "--key", key)
    assert code == 1
    assert "assay.resume" in err
    assert not (unfinished / "signature.json").exists()
    code, out, err = assay("verify", unfinished)
    assert code == 1
    assert "unfinished" in out


def test_an_audit_after_the_signature_makes_it_void(assay, copy, key):
    code, _, err = assay("audit", copy, "--releases", 200, "--seed", 1)
    assert code == 0, err
    assert failed(copy, key=f"{key}.pub") == {"signature"}
    runs.sign(copy, key)
    assert runs.verify(copy, key=f"{key}.pub").holds


FEDERATED = ("--data", "digits", "--model", "logistic", "--clients", 12, "--per-round", 4, "--rounds", 2)


def test_a_federated_run_is_signed_with_the_ledgers_of_its_clients(assay, key, tmp_path):
    path = tmp_path / "run"
    code, _, err = assay("federate", *FEDERATED, "--noise", "local", "--epsilon", 6, "--delta", 1e-2, "--out", path)
    assert code == 0, err
    runs.sign(path, key)
    assert runs.verify(path, key=f"{key}.pub").holds
    client = next((path / "clients").glob("*.jsonl"))
    whole = client.read_bytes()
    client.write_bytes(whole.replace(b'"steps": 1', b'"steps": 0'))
    assert failed(path) == {"clients", "signature"}
    client.unlink()
    assert failed(path) == {"signature"}
    client.write_bytes(whole)
    edit_record(path)
    assert failed(path) == {"epsilon", "signature"}
    assert assay("show", path)[0] == 1
