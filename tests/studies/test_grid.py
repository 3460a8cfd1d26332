"""Grids, tables of papers and their results, without training anything."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import presets
from assay.cli import passing
from assay.errors import ConfigError
from assay.studies import results, summary, tables
from assay.studies.comparing import method_axis
from assay.studies.directory import Study, differences
from assay.studies.grid import Grid, flags
from assay.studies.summary import Measured

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_runs_under_a_budget_have_no_seed_in_common():
    """Two of its cells have one number, and one seed is one noise."""
    assert [run.randomness for run in grid(seeds=[4]).runs()] == [{"seed": 4}] * 4
    assert [run.randomness for run in grid(seeds=[4], shared={"budget": "b"}).runs()] == [{}] * 4


def grid(**changed):
    axes = {
        "epsilon": {"1": {"epsilon": 1.0}, "2": {"epsilon": 2.0}},
        "method": {"a": {"method": "dpsgd"}, "b/c": {"option": ["x=1"]}},
    }
    return Grid(**({"title": "t", "shared": {"epochs": 3, "option": ["y=2"]}, "axes": axes, "seeds": [0, 1]} | changed))


def test_runs_are_every_combination_all_cells_of_a_seed_first():
    runs = list(grid().runs())
    assert [(run.labels, run.seed) for run in runs[:5]] == [
        (("1", "a"), 0),
        (("1", "b/c"), 0),
        (("2", "a"), 0),
        (("2", "b/c"), 0),
        (("1", "a"), 1),
    ]
    assert runs[1].settings == {"epochs": 3, "option": ["y=2", "x=1"], "epsilon": 1.0}
    assert len({run.directory(Path("s")) for run in runs}) == len(runs)
    assert runs[1].directory(Path("s")) == Path("s/1/b-c/seed0"), "a label is one folder, never a way out"


def test_what_has_the_last_word_has_it():
    assert all(run.settings["epochs"] == 1 for run in grid(last={"epochs": 1}).runs())


def test_some_cells_may_have_settings_of_their_own_and_settings_can_be_taken_away():
    rule = {"epsilon": "2", "method": ["b/c"], "train": {"epochs": 9, "epsilon": ""}}
    cells = {run.labels: run.settings for run in grid(where=[rule]).runs()}
    assert cells["2", "b/c"] == {"epochs": 9, "option": ["y=2", "x=1"]}
    assert cells["2", "a"]["epochs"] == cells["1", "b/c"]["epochs"] == 3
    assert Grid.from_json(grid(where=[rule]).to_json()) == grid(where=[rule])
    with pytest.raises(ConfigError, match="where"):
        grid(where=[{"method": "nonesuch", "train": {}}])


def test_rehearsals_name_every_label():
    seen = [run.labels for run in grid().rehearsals()]
    assert {labels[0] for labels in seen} == {"1", "2"}
    assert {labels[1] for labels in seen} == {"a", "b/c"}


@pytest.mark.parametrize(
    "changed", [{"seeds": []}, {"seeds": [1, 1]}, {"axes": {"a": {}}}, {"axes": {"a": {"x/y": {}, "x:y": {}}}}]
)
def test_grids_that_cannot_be_run_are_refused(changed):
    with pytest.raises(ConfigError):
        grid(**changed)


def test_flags():
    said = flags({"batch_size": 5, "option": ["a=1", "b=2"], "secure_rng": True, "force": False, "clip": None})
    assert said == ["--batch-size", "5", "--option", "a=1", "--option", "b=2", "--secure-rng"]


def test_settings_are_those_of_assay_train_and_only_what_was_given():
    asked = [
        "--epochs",
        "3",
        "--clip",
        "flat:1",
        "--denoise",
        "laplacian",
        "--adjacency",
        "replace-one",
        "--secure-rng",
    ]
    found = passing.settings("train", asked, decided={})
    assert found == {
        "epochs": 3.0,
        "clip": "flat:1",
        "denoise": ["laplacian"],
        "adjacency": "replace-one",
        "secure_rng": True,
    }
    assert passing.settings("train", flags(found), decided={}) == found


def test_a_study_takes_more_seeds_but_not_fewer(tmp_path):
    Study.at(tmp_path, grid())
    assert Study.at(tmp_path, grid(seeds=[0, 1, 2])).grid.seeds == grid(seeds=[0, 1, 2]).seeds
    assert Study.open(tmp_path).grid.to_json() == grid(seeds=[0, 1, 2]).to_json()
    with pytest.raises(ConfigError, match="seeds was"):
        Study.at(tmp_path, grid())


def test_a_study_is_written_once_and_other_settings_are_refused_by_name(tmp_path):
    Study.at(tmp_path / "s", grid())
    before = (tmp_path / "s/study.json").read_bytes()
    assert Study.at(tmp_path / "s", grid()).grid.to_json() == Study.open(tmp_path / "s").grid.to_json()
    with pytest.raises(ConfigError, match=r"train\.epochs was 3 and now is 4.*seeds was \[0, 1\] and now is \[0\]"):
        Study.at(tmp_path / "s", grid(shared={"epochs": 4, "option": ["y=2"]}, seeds=[0]))
    assert (tmp_path / "s/study.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="other files"):
        Study.at(tmp_path / "other", grid())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_differences_are_named_exactly_where_there_are_any(a, b):
    assert differences(a, a) == []
    told = differences(a, b)
    if not isinstance(a, dict) or not isinstance(b, dict):
        assert bool(told) == (a != b)


def test_method_entries():
    command, axis = method_axis("dpsgd,lssgd:sigma=2,over=tensor,gredp:clip=per-layer:1.0,lr=0.2", "verified")
    assert command == "train"
    assert axis == {
        "dpsgd": {"method": "dpsgd"},
        "lssgd:sigma=2,over=tensor": {"method": "lssgd", "option": ["sigma=2", "over=tensor"]},
        "gredp:clip=per-layer:1.0,lr=0.2": {"method": "gredp", "clip": "per-layer:1.0", "lr": "0.2"},
    }
    _, claimed = method_axis("dpsgd,gredp,discrete:variant=sound", "claimed")
    assert "option" not in claimed["dpsgd"], "nothing published differs from it"
    assert claimed["gredp"]["option"] == ["variant=published"]
    assert claimed["discrete:variant=sound"]["option"] == ["variant=sound"]


@pytest.mark.parametrize(
    "text", ["", "dpsgd,dpsgd", "nonesuch", "lssgd:sigma", "lssgd:colour=red", "lssgd:sigma=-1", "dpsgd:seed=4"]
)
def test_bad_method_entries_are_refused(text):
    with pytest.raises(ConfigError):
        method_axis(text, "verified")


@pytest.mark.parametrize("name", tables.names(EXPERIMENTS))
def test_every_table_of_the_checkout_is_a_grid_whose_numbers_belong_to_its_cells(name):
    table = tables.read(EXPERIMENTS, name)
    known = set(passing.options(table.grid.command))
    for labels in table.grid.cells():
        assert set(table.grid.settings(labels)) <= known

    def count(theirs):
        return sum(map(count, theirs.values())) if isinstance(theirs, dict) else 1

    last = [(column,) for column in [*table.attack["attack"], "average"]] if table.attack else [()]
    shown = [(*labels, *more) for labels in table.grid.cells() for more in last]
    reported = [labels for labels in shown if table.reported(labels) != "–"]
    assert len(reported) >= count(table.theirs), "a number of the paper that no cell shows"
    small = tables.read(EXPERIMENTS, name, "small")
    assert small.reduced, "and every table has a form that takes minutes"
    assert small.stem != table.stem


MEASURED = [
    (name, scale)
    for name in tables.names(EXPERIMENTS)
    for scale in ("full", "small")
    if (stem := tables.read(EXPERIMENTS, name, scale).stem).with_name(f"{stem.name}.json").exists()
]


@pytest.mark.parametrize(("name", "scale"), MEASURED)
def test_what_was_measured_was_measured_with_the_settings_that_are_there(name, scale):
    """A table or a preset that was changed after its runs: measure again, or take the change back."""
    table = tables.read(EXPERIMENTS, name, scale)
    for run in results.read(table).runs:
        assert run.settings in (None, table.grid.run(run.labels, run.seed).decided)


@pytest.mark.parametrize("name", ["dp-lssgd/table2", "dp-lssgd/verified"])
def test_results_from_before_there_was_a_schema_are_read(name):
    table = tables.read(EXPERIMENTS, name)
    found = results.read(table)
    cells = summary.cells(found.runs, list(table.grid.cells()))
    assert all(len(cell.runs) >= 3 for cell in cells)
    text = results.render(table, found)
    for cell in cells:
        assert f"| {' | '.join(cell.labels)} | {cell.accuracy} |" in text
    assert results.rows(table, found) in (EXPERIMENTS / "dp-lssgd/README.md").read_text(encoding="utf-8")


def measured(**changed):
    given = {"labels": ("x",), "seed": 0, "test_accuracy": 0.5, "claimed": 1.0, "verified": 1.00049, "audited": None}
    return Measured(**(given | {"noise_multiplier": 1.0, "steps": 3, "seconds": 1.0} | changed))


def test_results_come_back_as_they_were_and_say_what_was_reduced(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/t.toml").write_text(
        'title = "T"\nseeds = [0, 1]\n[train]\nepochs = 9\n[axis.method.x]\nmethod = "dpsgd"\n[axis.method.y]\n'
        '[theirs]\nx = 97.2\n[small]\nseeds = [0]\n[small.train]\nepochs = 1\n[small.labels]\nmethod = ["x"]\n'
    )
    table = tables.read(tmp_path, "p/t", "small")
    assert table.reduced == ("1 of 2 seeds", "method: only x of 2", "epochs 1 instead of 9")
    runs = [measured(verified=math.inf, audited=2.0), measured(seed=1, audited=1.0)]
    made = {"platform": "Linux x86_64", "python": "3.11.1", "torch": "2.13.0", "threads": 1}
    found = results.Results(title="T", runs=runs, environment=made, date="2026-01-02", cores=2, reduced=table.reduced)
    as_json, as_text = results.write(table, found)
    assert as_json == tmp_path / "p/t.small.json"
    assert results.read(table) == results.Results(**{**vars(found), "reduced": list(table.reduced)})
    assert json.loads(as_json.read_text())["cells"][0]["verified"] == "inf"
    text = as_text.read_text()
    assert "Reduced, not the paper's setting:** 1 of 2 seeds; method: only x of 2; epochs 1 instead of 9." in text
    assert "| x | 50.00 ± 0.00 | 97.2 | 1 | ∞ | ≥ 1 | 2 |" in text
    assert "2 cores, Linux x86_64, Python 3.11.1, torch 2.13.0" in text
    assert "2026-01-02" in text


def test_epsilon_is_rounded_to_the_side_that_is_true():
    assert summary.epsilon(1.00001) == "1.001"
    assert summary.epsilon(1.99999, lower_bound=True) == "≥ 1.999"
    assert summary.epsilon(math.inf) == "∞"
    assert summary.epsilon(None) == "–"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seeds = [0", "not valid TOML"),
        ('title = "T"\n', "lacks axis, seeds"),
        ("colour = 1\n", "colour"),
        ('title = "T"\nseeds = [0]\n[axis]\n', "exactly one of"),
        ('title = "T"\nseeds = [0]\n[axis]\n[train]\n[federate]\n', "exactly one of"),
        ('title = "T"\nseeds = [0]\n[axis]\n[federate]\n[small.train]\n', "train"),
        ('title = "T"\nseeds = [0]\n[axis.a.b]\n[federate]\n[figure]\nx = "epochs"\nseries = "a"\n', "rounds for x"),
        ('title = "T"\nruns = "p/t"\n[figure]\n', "another table"),
        ('title = "T"\nruns = "p/s"\n', "either .figure. or .attack."),
    ],
)
def test_a_bad_toml_is_told(tmp_path, text, told):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/t.toml").write_text(text)
    with pytest.raises(Exception, match=told):
        tables.read(tmp_path, "p/t")


def test_unknown_names_are_refused_with_what_there_is(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="dp-lssgd/table2"):
        tables.read(EXPERIMENTS, "gredp/table99")
    with pytest.raises(ConfigError, match="full, small"):
        tables.read(EXPERIMENTS, "dp-lssgd/table2", "huge")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--experiments"):
        tables.folder(None)
    monkeypatch.chdir(EXPERIMENTS / "gredp")
    assert tables.folder(None) == EXPERIMENTS


def test_settings_of_assay_federate_come_back():
    asked = ["--partition", "dirichlet:1", "--clients", "10", "--option", "least=0.5"]
    found = passing.settings("federate", asked, decided={})
    assert found == {"partition": "dirichlet:1", "clients": 10, "option": ["least=0.5"]}
    assert passing.settings("federate", flags(found), decided={}) == found


def test_a_grid_of_federated_runs_is_written_under_its_command_and_comes_back():
    rule = {"method": "a", "federate": {"rounds": 9}}
    made = grid(command="federate", where=[rule])
    written = made.to_json()
    assert written["federate"] == {"epochs": 3, "option": ["y=2"]}
    assert "train" not in written
    assert Grid.from_json(json.loads(json.dumps(written))) == made
    assert {run.labels: run.settings for run in made.runs()}["1", "a"]["rounds"] == 9
    with pytest.raises(ConfigError, match="federate"):
        grid(command="federate", where=[{"method": "a", "train": {}}])


def test_methods_decide_the_command_and_are_not_mixed():
    command, axis = method_axis("fedavg,fedags:least=0.2,noise=local,cpsgd", "verified")
    assert command == "federate"
    assert axis["fedags:least=0.2,noise=local"] == {"method": "fedags", "noise": "local", "option": ["least=0.2"]}
    _, claimed = method_axis("fedags,cpsgd", "claimed")
    assert claimed["fedags"]["option"] == ["variant=published"]
    assert "option" not in claimed["cpsgd"], "nothing published differs from it"
    with pytest.raises(ConfigError, match="assay federate only"):
        method_axis("dpsgd,fedavg", "verified")


def test_beside_a_result_of_a_preset_stands_how_many_settings_were_tried():
    table = tables.read(EXPERIMENTS, "utility/frontier")
    head, _, *rows = results.rows(table, results.read(table)).splitlines()
    row = next(row for row in rows if row.startswith("| MNIST | 1 |"))
    found = presets.get("best", "mnist", 1.0)
    assert dict(zip(head.split(" | "), row.split(" | "), strict=True))["settings tried"] == (
        f"{found.tried}, {'charged' if found.charged else 'not charged'}"
    )
    other = tables.read(EXPERIMENTS, "dp-lssgd/table2")
    assert "settings tried" not in results.rows(other, results.read(other)), "nobody says how those were found"


def test_how_settings_were_found_in_a_column():
    preset = {"from": "preset best", "tried": 80, "on": "a tenth", "charged": False}
    assert summary.tried(None) == "–"
    assert summary.tried(preset) == "80, not charged", "records from before changes were kept"
    changed = {**preset, "changed": ["lr", "model"]}
    assert summary.tried(changed) == "80, not charged; lr, model changed"
    chosen = {"from": "assay tune", "tried": 2, "on": "others", "charged": True, "start": changed}
    assert summary.tried(chosen) == "80, not charged; lr, model changed; then 2, charged"
