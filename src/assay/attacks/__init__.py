"""Membership inference: how much of a training set leaks in practice.

    setting = attacks.Setting(target=model, members=seen, nonmembers=unseen, train=train, pool=others)
    attacks.run("lira-offline", setting).to_json()

An attack shows what leaks at least. An attack that fails shows nothing. The registry finds every file that defines
`ATTACKS`. `assay._util.registry` explains how to add an attack from another package.
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
        """Its name."""
        ...

    @property
    def summary(self) -> str:
        """One line on what it does."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """What it requires of a setting: "train", "pool", "checkpoints" (two or more of the target)."""
        ...

    def score(self, setting: Setting) -> Scores:
        """A score for each record; 0 or more means "member". Never learns from the membership of these records."""
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
    """The attack of this name.

    Raises:
        ConfigError: There is no such attack.
    """
    return ATTACKS.choose("attack", name)


def lacking(name: str, setting: Setting) -> tuple[str, ...]:
    """What the attack of this name needs and the setting does not have."""
    has = {
        "train": setting.train is not None,
        "pool": setting.pool is not None,
        "checkpoints": len(rounds_of(setting.target)) > 1,
    }
    return tuple(need for need in get(name).needs if not has[need])


def run(name: str, setting: Setting, *, confidence: float = 0.95) -> AttackResult:
    """Attack, and measure how well it went.

    Args:
        name: The attack.
        setting: What the attacker has.
        confidence: The confidence of the intervals.

    Returns:
        What the attack achieved.

    Raises:
        ConfigError: There is no such attack, or the setting lacks what it needs.
    """
    missing = lacking(name, setting)
    if missing:
        accepted = f"needed by the attack {name}, together with what else it needs: {', '.join(get(name).needs)}"
        raise ConfigError(missing[0], None, accepted)
    return evaluate(name, get(name).score(setting), confidence)
