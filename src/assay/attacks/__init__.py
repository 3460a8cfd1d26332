"""Membership inference: how much of a training set leaks in practice.

    setting = attacks.Setting(target=model, members=seen, nonmembers=unseen, train=train, pool=others)
    attacks.run("lira-offline", setting).to_json()

An attack shows what leaks at least; that it fails shows nothing. One file an attack: a file that defines `ATTACKS` is
found by itself; nothing else needs an edit. `assay._util.registry` tells how an attack from outside is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from assay._util import lazy
from assay._util.registry import Registry
from assay.attacks.evaluation import AttackResult, Scores, evaluate
from assay.attacks.setting import Setting, Train, Trained, rounds_of
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.attacks.by_name import of_run

__all__ = [
    "Attack",
    "AttackResult",
    "Scores",
    "Setting",
    "Train",
    "Trained",
    "available",
    "get",
    "lacking",
    "of_run",
    "run",
]

__getattr__ = lazy.exports(__name__, {"of_run": "by_name"})


@runtime_checkable
class Attack(Protocol):
    """Scores records by how likely they are members."""

    @property
    def name(self) -> str:
        """As it is called."""
        ...

    @property
    def summary(self) -> str:
        """One line on what it does."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """What of a setting it cannot do without: "train", "pool", "checkpoints" (two or more of the target)."""
        ...

    def score(self, setting: Setting) -> Scores:
        """One score a record, at 0 and above "member". Learns nothing from the membership of the records it scores."""
        ...


ATTACKS: Registry[Attack] = Registry(
    "attack",
    of=Attack,
    wanted="an object with name, summary, needs and score (assay.attacks.Attack)",
    package=__name__,
    attribute="ATTACKS",
)


def available() -> dict[str, Attack]:
    """Every attack by name."""
    return dict(ATTACKS)


def get(name: str) -> Attack:
    """The attack of this name."""
    return ATTACKS.choose("attack", name)


def lacking(name: str, setting: Setting) -> tuple[str, ...]:
    """What this attack needs and the setting does not have."""
    has = {
        "train": setting.train is not None,
        "pool": setting.pool is not None,
        "checkpoints": len(rounds_of(setting.target)) > 1,
    }
    return tuple(need for need in get(name).needs if not has[need])


def run(name: str, setting: Setting, *, confidence: float = 0.95) -> AttackResult:
    """Attack, and say how well it went, with confidence intervals."""
    missing = lacking(name, setting)
    if missing:
        raise ConfigError(
            missing[0],
            None,
            f"needed by the attack {name}, together with what else it needs: {', '.join(get(name).needs)}",
        )
    return evaluate(name, get(name).score(setting), confidence)
