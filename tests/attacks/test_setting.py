"""What an attack learns from is never what it is measured on."""

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from assay import attacks
from assay.attacks.setting import Setting
from assay.errors import ConfigError


def numbered(start: int, count: int) -> TensorDataset:
    """Records whose first feature is their number."""
    generator = torch.Generator().manual_seed(start)
    x = torch.randn(count, 4, generator=generator)
    x[:, 0] = torch.arange(start, start + count)
    return TensorDataset(x, torch.arange(count) % 3)


def numbers(records: TensorDataset) -> set[int]:
    return {int(v) for v in records.tensors[0][:, 0]}


class ByMeans:
    """Training without randomness: linear weights that are the classes' means, twice. Keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[set[int]] = []

    def __call__(self, records: TensorDataset) -> list[nn.Module]:
        self.given.append(numbers(records))
        x, y = records.tensors
        made = []
        for scale in (0.01, 0.02):
            model = nn.Linear(4, 3)
            with torch.no_grad():
                model.weight.copy_(torch.stack([x[y == c].mean(0) for c in range(3)]) * scale)
                model.bias.zero_()
            made.append(model)
        return made


MEMBERS, NONMEMBERS, POOL = numbered(0, 60), numbered(1000, 50), numbered(2000, 80)
EVALUATED = numbers(MEMBERS) | numbers(NONMEMBERS)
LEARNING_ELSEWHERE = [name for name in attacks.available() if name != "lira-online"]


@pytest.mark.parametrize("name", LEARNING_ELSEWHERE)
def test_a_records_score_does_not_depend_on_whether_it_is_called_a_member(name):
    target = ByMeans()(MEMBERS)
    told = attacks.get(name).score(
        Setting(target=target, members=MEMBERS, nonmembers=NONMEMBERS, train=ByMeans(), pool=POOL, shadows=4)
    )
    swapped = attacks.get(name).score(
        Setting(target=target, members=NONMEMBERS, nonmembers=MEMBERS, train=ByMeans(), pool=POOL, shadows=4)
    )
    assert told.members == pytest.approx(swapped.nonmembers, rel=1e-6, abs=1e-9)
    assert told.nonmembers == pytest.approx(swapped.members, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", LEARNING_ELSEWHERE)
def test_shadow_models_see_records_of_the_pool_only(name):
    train = ByMeans()
    setting = Setting(
        target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, train=train, pool=POOL, shadows=4
    )
    attacks.run(name, setting)
    assert train.given
    for seen in train.given:
        assert seen <= numbers(POOL)
        assert len(seen) <= 0.75 * len(POOL)


def test_online_shadows_see_each_record_as_often_whether_member_or_not():
    train = ByMeans()
    setting = Setting(target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, train=train, shadows=6)
    attacks.run("lira-online", setting)
    assert len(train.given) == 6
    assert all(sum(number in seen for seen in train.given) == 3 for number in EVALUATED)
    # random halves: beyond these limits with probability 1e-6 for all shadows together
    fewest, most = hypergeom.ppf([1e-7, 1 - 1e-7], len(EVALUATED), len(MEMBERS), len(EVALUATED) // 2)
    assert all(fewest <= len(seen & numbers(MEMBERS)) <= most for seen in train.given)


@pytest.mark.parametrize("known", [0.01, 0.3, 0.99])
def test_without_a_pool_the_known_part_is_not_evaluated(known):
    setting = Setting(target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, known=known)
    for whole, learned, measured in (
        (MEMBERS, setting.calibration.members, setting.evaluated.members),
        (NONMEMBERS, setting.calibration.nonmembers, setting.evaluated.nonmembers),
    ):
        assert numbers(learned) | numbers(measured) == numbers(whole)
        assert numbers(learned).isdisjoint(numbers(measured))
        assert min(len(learned), len(measured)) >= 4
    result = attacks.run("loss", setting)
    assert (result.members, result.nonmembers) == (len(setting.evaluated.members), len(setting.evaluated.nonmembers))
    assert "not evaluated" in result.calibration


def test_one_setting_trains_its_shadow_once():
    train = ByMeans()
    setting = Setting(target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, train=train, pool=POOL)
    for name in ("loss", "entropy", "ml-leaks"):
        attacks.run(name, setting)
    assert len(train.given) == 1


def test_the_same_setting_gives_the_same_result_and_random_state_is_left_alone():
    def setting():
        return Setting(target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, seed=4)

    first, again = setting(), setting()
    state = torch.get_rng_state()
    assert attacks.run("white-box", first) == attacks.run("white-box", again)
    assert torch.equal(torch.get_rng_state(), state)


class OneByOne(Dataset):
    """Records that are not tensors yet."""

    def __init__(self, records: TensorDataset) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i):
        x, y = self.records[i]
        return x, int(y)


def test_any_data_set_of_pairs_will_do():
    target = ByMeans()(MEMBERS)
    plain = attacks.run("loss", Setting(target=target, members=MEMBERS, nonmembers=NONMEMBERS))
    other = attacks.run("loss", Setting(target=target, members=OneByOne(MEMBERS), nonmembers=OneByOne(NONMEMBERS)))
    assert plain == other


def test_overlap_is_refused():
    parts = [Subset(POOL, range(a, a + 20)) for a in (0, 20, 30)]
    with pytest.raises(ConfigError, match="10 records that are also in `nonmembers`"):
        Setting(target=nn.Linear(4, 3), members=parts[0], nonmembers=parts[1], pool=parts[2], train=ByMeans())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shadows": 5}, "shadows"),
        ({"shadows": 2}, "shadows"),
        ({"known": 1.0}, "known"),
        ({"target": []}, "target"),
        ({"pool": POOL}, "train"),
        ({"members": Subset(MEMBERS, range(7))}, "members"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, field):
    with pytest.raises(ConfigError, match=f"^{field} = "):
        Setting(**{"target": nn.Linear(4, 3), "members": MEMBERS, "nonmembers": NONMEMBERS, **change})


@pytest.mark.parametrize(
    ("name", "field"),
    [("ml-leaks", "train"), ("lira-online", "train"), ("lira-offline", "train"), ("confidence-series", "checkpoints")],
)
def test_what_an_attack_lacks_is_named(name, field):
    setting = Setting(target=nn.Linear(4, 3), members=MEMBERS, nonmembers=NONMEMBERS)
    assert field in attacks.lacking(name, setting)
    with pytest.raises(ConfigError, match=f"^{field} = "):
        attacks.run(name, setting)


def test_a_shadow_with_other_checkpoints_than_the_target_is_refused():
    setting = Setting(
        target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, train=lambda _: nn.Linear(4, 3), pool=POOL
    )
    with pytest.raises(ConfigError, match="1 checkpoints"):
        attacks.run("confidence-series", setting)


def test_attacks_are_found_by_name_and_described():
    assert set(attacks.available()) == {
        "confidence",
        "rmia-offline",
        "loss",
        "entropy",
        "modified-entropy",
        "ml-leaks",
        "confidence-series",
        "white-box",
        "lira-online",
        "lira-offline",
    }
    for name, attack in attacks.available().items():
        assert attack.name == name
        assert attack.summary
        assert "\n" not in attack.summary
    with pytest.raises(ConfigError, match="lira-offline"):
        attacks.get("no-such-attack")


def test_scores_are_one_a_record():
    setting = Setting(target=ByMeans()(MEMBERS), members=MEMBERS, nonmembers=NONMEMBERS, train=ByMeans(), pool=POOL)
    scores = attacks.get("lira-offline").score(setting)
    assert scores.members.shape == (60,)
    assert scores.nonmembers.dtype == np.float64
