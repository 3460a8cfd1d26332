"""What other packages say about the same runs: `benchmarks.oracles` runs it in the environment of the peers.

It asks the packages that are installed where it runs, and imports nothing of Assay. Each answer is an upper bound, and
a lower one where the package has it. `null` means that the package does not cover the run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from benchmarks.oracles.settings import ADDED, SETTINGS, Setting

Answer = tuple[float, float | None]  # an upper bound, and a lower one
_SAMPLED = ("full", "poisson")


def _event(run: Setting) -> Any:
    from dp_accounting import dp_event

    noise = dp_event.GaussianDpEvent(run.noise)
    if run.sampling == "full":
        return noise
    if run.sampling == "truncated-poisson":
        return dp_event.TruncatedSubsampledGaussianDpEvent(run.records, run.rate, run.cap, run.noise)
    return dp_event.PoissonSampledDpEvent(run.rate, noise)


def _relation(run: Setting) -> Any:
    from dp_accounting import NeighboringRelation

    return NeighboringRelation.ADD_OR_REMOVE_ONE if run.adjacency == ADDED else NeighboringRelation.REPLACE_ONE


def _dp_accounting_pld(run: Setting) -> Answer | None:
    from dp_accounting import pld

    if run.sampling not in (*_SAMPLED, "truncated-poisson"):
        return None
    accountant = pld.PLDAccountant(_relation(run), value_discretization_interval=1e-4)
    event = _event(run)
    # under replace-one dp_accounting takes noise relative to the bound of one record for a Poisson sample only
    if run.sampling == "full" and run.adjacency != ADDED:
        from dp_accounting import dp_event

        accountant, event = pld.PLDAccountant(), dp_event.GaussianDpEvent(run.noise / 2)
    accountant.compose(event, run.turns)
    return float(accountant.get_epsilon(run.delta)), None


def _dp_accounting_renyi(run: Setting) -> Answer | None:
    from dp_accounting import dp_event, rdp

    if run.sampling == "without-replacement":
        # its multiplier is relative to how far replacing a record of the sample moves the sum
        doubled = dp_event.GaussianDpEvent(run.noise / 2)
        event: Any = dp_event.SampledWithoutReplacementDpEvent(run.records, run.batch, doubled)
    elif run.sampling in _SAMPLED and run.adjacency == ADDED:
        event = _event(run)
    else:
        return None
    accountant = rdp.RdpAccountant(neighboring_relation=_relation(run))
    accountant.compose(event, run.turns)
    return float(accountant.get_epsilon(run.delta)), None


def _prv_accountant(run: Setting) -> Answer | None:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    if run.sampling not in _SAMPLED or run.adjacency != ADDED:
        return None
    single = (
        GaussianMechanism(noise_multiplier=run.noise)
        if run.sampling == "full"
        else PoissonSubsampledGaussianMechanism(sampling_probability=run.rate, noise_multiplier=run.noise)
    )
    accountant = PRVAccountant(
        prvs=[single], eps_error=0.01, delta_error=run.delta / 1000, max_self_compositions=[run.turns]
    )
    low, _, high = accountant.compute_epsilon(run.delta, [run.turns])
    return float(high), float(low)


def _opacus(kind: str, run: Setting) -> Answer | None:
    from opacus.accountants import create_accountant

    if run.sampling not in _SAMPLED or run.adjacency != ADDED:
        return None
    accountant = create_accountant(kind)
    accountant.history = [(run.noise, run.rate if run.sampling == "poisson" else 1.0, run.turns)]
    return float(accountant.get_epsilon(run.delta)), None


def _jax_privacy(run: Setting) -> Answer | None:
    from jax_privacy import accounting

    covered = {"poisson": ADDED, "without-replacement": "replace-one"}
    if covered.get(run.sampling) != run.adjacency:
        return None
    method = accounting.SamplingMethod
    params = accounting.DpParams(
        noise_multipliers=run.noise,
        num_samples=run.records,
        delta=run.delta,
        batch_size=run.batch,
        cycle_length=run.bands,
        sampling_method=method.POISSON if run.sampling == "poisson" else method.FIXED_BATCH_SIZE,
    )
    accountant = accounting.DpsgdTrainingAccountant(dp_accountant_config=accounting.PldAccountantConfig())
    return float(accountant.compute_epsilon(run.steps, params)), None


def _pld_accounting(run: Setting) -> Answer | None:
    return allocation_bounds(run, _GRID) if run.sampling == "shuffle" else None


def allocation_bounds(run: Setting, grid: float) -> tuple[float, float]:
    """PLD_accounting's upper and lower bound on ε of random allocation, on a grid of this interval."""
    from PLD_accounting import (
        AllocationSchemeConfig,
        BoundType,
        PrivacyParams,
        gaussian_allocation_epsilon_configurable,
    )

    params = PrivacyParams(
        sigma=run.noise, num_steps=run.epoch, num_epochs=run.steps // run.epoch, delta=run.delta, epsilon=None
    )
    config = AllocationSchemeConfig(loss_discretization=grid)
    high, low = (
        gaussian_allocation_epsilon_configurable(params=params, config=config, bound_type=kind)
        for kind in (BoundType.DOMINATES, BoundType.IS_DOMINATED)
    )
    return float(high), float(low)


_GRID = 0.02  # of PLD_accounting; 234 batches take minutes on it


def _random_allocation(run: Setting) -> Answer | None:
    from random_allocation import PrivacyParams, SchemeConfig, allocation_epsilon_direct

    if run.sampling != "shuffle":
        return None
    params = PrivacyParams(
        sigma=run.noise, num_steps=run.epoch, num_epochs=run.steps // run.epoch, delta=run.delta, epsilon=None
    )
    config = SchemeConfig(allocation_direct_alpha_orders=list(range(2, 61)))
    return float(allocation_epsilon_direct(params, config)), None


PEERS: dict[str, tuple[str, Callable[[Setting], Answer | None]]] = {
    "dp_accounting PLD": ("dp_accounting", _dp_accounting_pld),
    "dp_accounting Rényi": ("dp_accounting", _dp_accounting_renyi),
    "prv_accountant": ("prv_accountant", _prv_accountant),
    "Opacus PRV": ("opacus", lambda run: _opacus("prv", run)),
    "Opacus Rényi": ("opacus", lambda run: _opacus("rdp", run)),
    "jax_privacy": ("jax_privacy", _jax_privacy),
    "PLD_accounting": ("PLD_accounting", _pld_accounting),
    "random-allocation Rényi": ("random_allocation", _random_allocation),
}
_DISTRIBUTIONS = {"random_allocation": "random-allocation", "PLD_accounting": "pld-accounting"}


def answers(known: set[tuple[str, str]], limit: int) -> Iterator[dict[str, Any]]:
    """What every installed peer says about every run, one after the other.

    Args:
        known: The peers and runs, by their names, that need not be asked about.
        limit: Seconds of the processor for an answer.
    """
    for name, (module, ask) in PEERS.items():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        version = metadata.version(_DISTRIBUTIONS.get(module, module))
        for run in SETTINGS:
            if (name, run.key) not in known:
                said = {"peer": name, "module": module, "version": version, "run": run.key}
                yield said | {"answer": _asked(ask, run, limit)}


def _asked(ask: Callable[[Setting], Answer | None], run: Setting, limit: int) -> dict[str, Any] | None:
    """The answer of a process of its own, which the system ends at the limit: compiled code hears no signal."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        with os.fdopen(write, "w", encoding="utf-8") as out:
            json.dump(_answer(ask, run), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as given:
        said = given.read()
    os.waitpid(child, 0)
    found: dict[str, Any] | None = json.loads(said) if said else {"refused": f"no answer in {limit} s of the processor"}
    return found


def _answer(ask: Callable[[Setting], Answer | None], run: Setting) -> dict[str, Any] | None:
    start = time.process_time()
    # some packages print what they think, and the answers are printed as JSON
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        try:
            answer = ask(run)
        except Exception as error:  # whatever a peer refuses is part of the table
            return {"refused": f"{type(error).__name__}: {error}"[:200]}
    if answer is None:
        return None
    upper, lower = answer
    return {"upper": upper, "lower": lower, "seconds": round(time.process_time() - start, 2)}


def main() -> None:
    """Read what is known as JSON, and print a line of JSON for each answer as soon as there is one."""
    given = json.load(sys.stdin)
    for said in answers({(peer, run) for peer, run in given["known"]}, given["limit"]):
        print(json.dumps(said, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
