"""What a process imports before it begins: ε needs no torch, help needs no numbers, and a thing by name needs no other
thing.
"""

import json
import os
import resource
import subprocess
import sys

import pytest

RUN = """
import json, sys
from assay.cli import main
for command in sys.argv[1:]:
    sys.argv, code = ["assay", *command.split()], None
    try:
        main()
    except SystemExit as end:
        code = end.code
    print("\\n" + json.dumps([code or 0, sorted(sys.modules)]))
"""
HEAVY = {"torch", "numpy", "scipy", "dp_accounting", "pandas"}
PLAN = "--records 60000 --batch-size 512 --epochs 10 --delta 1e-5"


def imported(*commands):
    """The exit code of each command, and the modules that their process has after it."""
    done = subprocess.run([sys.executable, "-c", RUN, *commands], capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(said) == len(commands)
    return [(code, set(modules)) for code, modules in said]


HELP = """
import json, sys
from click.testing import CliRunner
from typer.main import get_command
from assay.cli import app
whole = get_command(app)
codes = {name: CliRunner().invoke(whole, [name, "--help"]).exit_code for name in whole.commands}
print(json.dumps([codes, sorted(sys.modules)]))
"""


def test_the_help_of_every_command_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    codes, modules = json.loads(done.stdout)
    assert {"train", "federate", "epsilon", "compare"} <= codes.keys()
    assert set(codes.values()) == {0}
    assert not set(modules) & HEAVY


@pytest.mark.parametrize(("command", "code"), [("--help", 0), ("train --bogus", 2), ("nothing", 2)])
def test_help_and_usage_errors_import_nothing_heavy(command, code):
    ((ended, modules),) = imported(command)
    assert ended == code
    assert not modules & HEAVY


def test_epsilon_is_computed_without_torch():
    commands = [
        f"epsilon {PLAN} --noise-multiplier 1",
        f"epsilon {PLAN} --noise-multiplier 1 --method gredp --variant published --groups 4",
        f"epsilon {PLAN} --noise-multiplier 1 --method discrete --micro-batch 2",
        f"epsilon {PLAN} --noise-multiplier 1 --method afrrs --variant published --clip assumed:1.0",
        f"calibrate {PLAN} --epsilon 3 --method lssgd --center mean",
        f"calibrate {PLAN} --epsilon 3 --method afrrs --noise-schedule constant",
    ]
    for command, (code, modules) in zip(commands, imported(*commands), strict=True):
        assert code == 0, command
        assert "torch" not in modules, command


def test_a_method_is_found_without_importing_the_others():
    ((_, modules),) = imported(f"epsilon {PLAN} --noise-multiplier 1")
    found = {name for name in modules if name.startswith("assay.")}
    assert "assay.methods.dpsgd" in found
    assert not found & {f"assay.methods.{name}" for name in ("afrrs", "gredp", "lssgd", "discrete", "spectral")}
    assert not found & {f"assay.gradients.clip_rules.{name}" for name in ("adaptive", "automatic", "per_layer")}
    assert not found & {f"assay.data.samplers.{name}" for name in ("full", "shuffled", "without_replacement")}


def test_the_order_of_a_list_does_not_depend_on_what_was_asked_for_first():
    code = "from assay import methods; {}print(list(methods.METHODS))"
    lists = [
        subprocess.run([sys.executable, "-c", code.format(first)], capture_output=True, text=True, check=True).stdout
        for first in ("", "methods.get('spectral'); ")
    ]
    assert lists[0] == lists[1]


def test_epsilon_takes_at_most_three_seconds_of_a_core():
    """It takes less than one on an ordinary core; with torch it took two to five."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "assay", *f"epsilon {PLAN} --noise-multiplier 1".split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3


CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
ELSE = {name: value for name, value in os.environ.items() if "PRIMITIVE_CACHE" not in name}
SIZES = """
import assay, torch
kernel, records = torch.ones(1, 1, 1, 1), torch.ones(400, 1, 2, 2)
for _ in range(2):
    print("turn", flush=True)
    for n in range(1, 401):
        torch.mkldnn_convolution(records[:n], kernel, None, [0, 0], [1, 1], [1, 1], 1)
"""


def test_kernels_for_many_batch_sizes_are_compiled_once():
    """400 sizes need up to three kernels each, more than the 1024 that oneDNN keeps by itself."""
    given = ELSE | {"ONEDNN_VERBOSE": "2"}
    done = subprocess.run([sys.executable, "-c", SIZES], capture_output=True, text=True, check=True, env=given)
    _, first, second = done.stdout.split("turn\n")
    assert first.count("create:cache_miss") >= 400
    assert "create:cache_miss" not in second


@pytest.mark.parametrize("name", [CAPACITY, CAPACITY.replace("ONEDNN", "DNNL")])
def test_how_many_kernels_are_kept_is_the_users_choice(name):
    command = f"import assay, os; print(os.environ.get({CAPACITY!r}))"
    given = ELSE | {name: "16"}
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, env=given)
    assert done.stdout.strip() == ("16" if name == CAPACITY else "None")
