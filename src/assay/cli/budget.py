"""`assay budget`: what all runs on the same records may spend together; and `assay total`, for runs without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from assay._util.figures import at_least, at_most
from assay.accounting.adjacency import Adjacency
from assay.cli import options
from assay.cli.output import console, note, note_delta, print_json
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.accounting.budget import Budget
    from assay.accounting.budget_entries import Account, State

Name = Annotated[str, typer.Argument(help="The budget: NAME, or the folder NAME.budget.")]
Places = Annotated[
    list[Path] | None, typer.Argument(help="Directories of runs, beside the places that the budget knows.")
]
By = Annotated[str | None, typer.Option("--operator", help="Who does this. (default: the user of this computer)")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    budget = typer.Typer(
        help="One budget for all runs on the same records: `assay budget new NAME` makes it.", no_args_is_help=True
    )
    budget.command("new")(new)
    budget.command("show")(show)
    budget.command("verify")(verify)
    budget.command("settle")(settle)
    budget.command("add")(add)
    app.add_typer(budget, name="budget")
    app.command()(total)


def new(
    name: Annotated[str, typer.Argument(help="The budget's name; the folder NAME.budget is made.")],
    epsilon: Annotated[float, typer.Option(help="The most that all runs together may spend.")],
    data: Annotated[str, typer.Option(help="A data set's name (`assay data`), or a file: the records that it covers.")],
    delta: options.Delta = 1e-5,
    unit: Annotated[
        str, typer.Option(help="What ε protects: record, client, or a column that says whose a row is.")
    ] = "record",
    adjacency: options.Adjacent = Adjacency.ADD_OR_REMOVE_ONE,
    key: Annotated[
        Path | None,
        typer.Option(help="A private key (`assay keys new`) that signs every entry. Runs then need it too."),
    ] = None,
    operator: By = None,
    data_dir: options.DataDir = None,
) -> None:
    """Make a budget for records that have none.

    Its file records.bin is as private as the records: keep it with them.
    """
    from assay.training import budgets

    made = budgets.create(
        name,
        epsilon=epsilon,
        delta=delta,
        data=data,
        data_dir=data_dir,
        unit=unit,
        adjacency=adjacency,
        key=key,
        by=operator,
    )
    note_delta(delta, made.state().records)
    _print_head(made, made.state())
    console().print(f"kept in {made.path}; records.bin there is as private as the records themselves")


def show(name: Name, json: options.Json = False) -> None:
    """Who spent what, when, and what is left."""
    from assay.accounting.budget import Budget

    budget = Budget(name)
    state = budget.latest()  # what an earlier copy says was spent is too little
    if json:
        print_json(_as_json(budget, state))
        return
    _print_head(budget, state)
    if state.accounts:
        table = Table("began", "by", "run", box=None, pad_edge=False)
        for heading in ("ε alone", "at δ", "ε of all so far"):
            table.add_column(heading, justify="right")
        table.add_column("state")
        for account, so_far in zip(state.accounts, state.so_far(), strict=True):
            table.add_row(*_row(account, so_far))
        out = console(wrap=True)
        if not out.is_terminal:
            out.width = 200  # a pipe has no width: nothing is cut off
        out.print(table)
    _print_left(budget, state)


def _row(account: Account, so_far: float) -> list[str]:
    began = account.began.replace("T", " ").removesuffix("+00:00")
    alone = "∞" if account.epsilon == "inf" else at_most(float(account.epsilon))
    return [began, account.by, account.name, alone, f"{account.delta:g}", _epsilon(so_far), _state(account)]


def _epsilon(value: float) -> str:
    return "∞" if value == float("inf") else at_most(value)


def _state(account: Account) -> str:
    if account.open:
        return "reserved: not ended"
    words = {"finished": "finished", "ledger": "settled by its ledger", "failed": "failed"}
    steps = f", {account.steps} steps" if account.steps else ""  # tuning does not tell its steps
    return words.get(str(account.how), str(account.how)) + steps


def _print_head(budget: Budget, state: State) -> None:
    out = console()
    what = {"record": "records", "client": "records of clients"}.get(budget.unit, f"persons ({budget.unit})")
    signed = "" if budget.public_key is None else f", signed by {budget.public_key.fingerprint}"
    out.print(
        f"budget {budget.name}: all runs on {state.records} {what} together, at most ε = {budget.epsilon:g} at"
        f" δ = {budget.delta:g} ({budget.adjacency.value}){signed}"
    )
    for other in state.overlaps:
        rows, spent = (
            ("rows", f", whose ε is that of each {other['unit']}: neither counts what the other spends")
            if "unit" in other
            else ("of them", ": for those, what is spent there comes on top")
        )
        out.print(f"{other['records']} {rows} are also in the budget {other['name']}{spent}")


def _print_left(budget: Budget, state: State) -> None:
    still = sum(account.open for account in state.accounts)
    left = state.left()
    out = console()
    out.print(
        f"spent or reserved: ε = {_epsilon(state.spent())} of {budget.epsilon:g}; left: "
        + (f"about one run of ε = {at_least(left, 2)}" if left >= 0.01 else "nothing")
    )
    if still:
        out.print(
            f"{still} of {len(state.accounts)} runs keep all that they reserved: resume them, or once they have ended:"
            f" assay budget settle {budget.name}"
        )


def _as_json(budget: Budget, state: State) -> dict[str, Any]:
    from assay.runs.record import number

    return {
        "name": budget.name,
        "id": budget.id,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit,
        "adjacency": budget.adjacency.value,
        "records": state.records,
        "overlaps": list(state.overlaps),
        "spent": number(state.spent()),
        "left": number(state.left()),
        "head": state.heads[-1],
        "entries": len(state.heads),
        "runs": [
            {
                "name": account.name,
                "what": account.what,
                "by": account.by,
                "began": account.began,
                "changed": account.changed,
                "epsilon": account.epsilon,
                "delta": account.delta,
                "so_far": number(so_far),
                "open": account.open,
                "how": account.how,
                "steps": account.steps,
            }
            for account, so_far in zip(state.accounts, state.so_far(), strict=True)
        ],
    }


def verify(
    name: Name,
    runs: Places = None,
    key: Annotated[Path | None, typer.Option(help="The public key that the budget must be signed with.")] = None,
) -> None:
    """Check every entry, and hold the budget against the runs that can be found."""
    from assay.accounting.budget import Budget
    from assay.runs import budgeted

    budget = Budget(name)
    found = budgeted.verify(budget, runs or [], key=key)
    out = console()
    signed = "not signed" if budget.public_key is None else f"signed by {budget.public_key.fingerprint}"
    out.print(f"budget {budget.name}: {len(budget.state().heads)} entries, {signed}; {found.compared} runs compared")
    if found.missing:
        note(f"not found, so not compared: {', '.join(found.missing)}")
    for problem in found.problems:
        out.print(f"✕ {problem}")
    if found.problems:
        raise AssayError(f"the budget {budget.name} does not hold: do not rely on it")
    out.print(
        "✓ every entry follows from the one before, no cost is less than its releases, and the ceiling was never passed"
    )


def settle(
    name: Name,
    runs: Places = None,
    key: Annotated[Path | None, typer.Option(help="The private key of a budget that is signed.")] = None,
    operator: By = None,
) -> None:
    """Give back what runs that were killed had reserved and not used, by their ledgers."""
    from assay.accounting.budget import Budget
    from assay.runs import budgeted

    budget = Budget(name, key=key)
    out = console()
    for account, why in budgeted.settle_by_ledgers(budget, runs or [], by=operator):
        out.print(f"{account.name}: " + ("settled" if why is None else f"keeps its reservation: {why}"))
    _print_left(budget, budget.state())


def add(
    name: Name,
    data: Annotated[str, typer.Option(help="A data set's name, or a file: more records under the same ceiling.")],
    key: Annotated[Path | None, typer.Option(help="The private key of a budget that is signed.")] = None,
    operator: By = None,
    data_dir: options.DataDir = None,
) -> None:
    """Cover more records with a budget."""
    from assay.training import budgets

    budget, count = budgets.add(name, data=data, data_dir=data_dir, key=key, by=operator)
    console().print(f"{count} of them are new to the budget")
    _print_head(budget, budget.state())


def total(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs on the same records.")],
    delta: Annotated[float | None, typer.Option(help="δ of the total. (default: that of the runs)")] = None,
    json: options.Json = False,
) -> None:
    """What several runs on the same records spend together, although each was chosen after seeing the others."""
    from assay.runs import totals
    from assay.runs.record import number

    found = totals.total(runs, delta=delta)
    if json:
        print_json(
            {
                "epsilon": number(found.epsilon),
                "fixed": number(found.fixed),
                "delta": found.delta,
                "adjacency": found.adjacency.value,
                "unit": found.unit,
                "same_records": found.same_records,
                "runs": [
                    {"name": part.name, "epsilon": number(part.epsilon), "delta": part.delta} for part in found.parts
                ],
            }
        )
        return
    out = console()
    for part in found.parts:
        said = f", with {part.replaced} replaced there" if part.replaced else ""
        said += "" if part.begun else ", where no run has begun"
        out.print(f"ε = {_epsilon(part.epsilon)} at δ = {part.delta:g}   {part.name} ({part.data}{said})")
    out.print(
        f"together ε ≤ {_epsilon(found.epsilon)} at δ = {found.delta:g} (unit: {found.unit}, {found.adjacency.value})"
    )
    out.print(
        "valid although settings were chosen after earlier results (Rényi divergences, weighted orders);"
        f" had all been fixed beforehand: ε ≤ {_epsilon(found.fixed)}"
    )
    if not found.same_records:
        note("these runs name different data: the total is that of records that are in all of them")
