"""A table of a paper as a grid of ordinary `assay train` runs.

A TOML names the arguments that all runs share (`[train]`), the axes of the grid (`[axis.NAME.LABEL]`, each label a few
arguments) and the seeds; a run is one label of each axis and one seed. Runs are directories like any other: a finished one is
never repeated, an unfinished one is resumed.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One cell of the grid with one seed."""

    labels: tuple[str, ...]
    seed: int
    arguments: Arguments

    def directory(self, runs: Path) -> Path:
        return runs.joinpath(*self.labels, f"seed{self.seed}")

    def command(self, directory: Path) -> list[str]:
        if directory.exists():
            return ["resume", str(directory)]
        flags = []
        for name, value in (self.arguments | {"seed": self.seed, "out": directory}).items():
            for one in value if isinstance(value, list) else [value]:
                flags += [f"--{name.replace('_', '-')}", str(one)]
        return ["train", *flags]


@dataclass(frozen=True)
class Table:
    """A table: its runs, and the paper's own numbers for the labels of its cells."""

    name: str
    title: str
    train: Arguments
    axes: Mapping[str, Mapping[str, Arguments]]
    seeds: list[int]
    theirs: Mapping[str, Any]

    @classmethod
    def read(cls, name: str) -> Table:
        path = HERE / f"{name}.toml"
        if not path.exists():
            known = sorted(str(p.relative_to(HERE).with_suffix("")) for p in HERE.glob("*/*.toml"))
            raise SystemExit(f"no table {name!r}; there are: {', '.join(known)}")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(name, data["title"], data["train"], data["axis"], data["seeds"], data.get("theirs", {}))

    def runs(self) -> Iterator[Run]:
        for seed in self.seeds:
            for labels in itertools.product(*self.axes.values()):
                arguments = dict(self.train)
                for axis, label in zip(self.axes.values(), labels, strict=True):
                    for key, value in axis[label].items():
                        both = isinstance(value, list) and isinstance(arguments.get(key), list)
                        arguments[key] = [*arguments[key], *value] if both else value
                yield Run(labels, seed, arguments)

    @property
    def results(self) -> Path:
        return HERE / f"{self.name}.json"


def run(table: Table, runs: Path, workers: int) -> None:
    """Do what is not yet done, `workers` runs at a time with one thread each, and write down the results so far."""
    folder = runs / table.name
    todo = [one for one in table.runs() if not (one.directory(folder) / "record.json").exists()]
    sys.stderr.write(f"{table.name}: {len(todo)} runs to do\n")

    def do(one: Run) -> None:
        directory = one.directory(folder)
        directory.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "assay", *one.command(directory)]
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        said = done.stdout.splitlines()[0] if done.returncode == 0 else f"failed: {' '.join(command)}\n{done.stderr}"
        sys.stderr.write(f"{' '.join(one.labels)} seed {one.seed}: {said}\n")
        sys.stderr.flush()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(do, todo))
    write_results(table, folder)


def write_results(table: Table, folder: Path) -> None:
    """What was measured, from the records of the finished runs."""
    cells, environment = [], None
    for one in table.runs():
        path = one.directory(folder) / "record.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        environment = record["environment"]
        cells.append(
            {
                "labels": list(one.labels),
                "seed": one.seed,
                "test_accuracy": record["result"]["test_accuracy"],
                "claimed": record["epsilon"]["claimed"],
                "verified": record["epsilon"]["verified"],
                "parts": {part["name"]: part["verified"] for part in record.get("parts", [])},
                "noise_multiplier": record["noise_multiplier"],
                "steps": record["steps"],
                "seconds": record["timing"]["seconds"],
            }
        )
    text = json.dumps({"title": table.title, "environment": environment, "cells": cells}, indent=1, ensure_ascii=False)
    table.results.write_text(text + "\n", encoding="utf-8")
