"""What the page says, and that it says it to everybody and trusts nobody."""

import json
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay import at_most
from assay.report import charts, html, statement
from assay.report.charts import HEIGHT, WIDTH, Axis, Point, Series, legend
from assay.report.collect import Collector
from assay.report.elements import epsilon
from assay.report.groups import Tone, group_runs, verdict
from assay.report.page import render

EVIL = "</title></script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Text, tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self._skip = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._skip = tag in ("style", "script")

    def handle_endtag(self, tag):
        self._skip = False

    def handle_data(self, data):
        if not self._skip:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page(root, **how):
    return render(Collector(root).collect(), **how)


def groups(root):
    return group_runs(Collector(root).collect().finished)


@given(st.text(), st.text())
def test_whatever_goes_in_comes_out_as_text(text, attribute):
    read = Reader(html.tag("p", text, title=attribute))
    assert [tag for tag, _ in read.tags] == ["p"]
    kept = html.tag("p", text)
    assert "<" not in kept.removeprefix("<p>").removesuffix("</p>")
    assert '"' not in html.tag("p", title=attribute).removeprefix('<p title="').removesuffix('"></p>')


@given(st.text())
def test_a_statement_makes_no_element_but_its_own(text):
    allowed = {
        "h4",
        "h5",
        "h6",
        "p",
        "ul",
        "li",
        "blockquote",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "strong",
        "code",
    }
    assert {tag for tag, _ in Reader(statement.render(text)).tags} <= allowed


def test_a_statement_reads_as_it_was_written(trained):
    text = (trained / "statement.md").read_text()
    read = Reader(statement.render(text))
    assert "Training this model spent ε" in read.text
    assert "claimed" in read.text
    assert {"h4", "h5", "table", "li", "blockquote", "strong"} <= {tag for tag, _ in read.tags}
    assert not re.search(r"\*\*|^#|\|", read.text)


def test_nothing_of_a_run_is_trusted(tmp_path, run, resealed):
    path = run(
        tmp_path / "runs" / EVIL.replace("/", "∕"),
        method=EVIL,
        model=EVIL,
        data=EVIL,
        notes=EVIL,
        unit=EVIL,
        variant=EVIL,
    )
    record = json.loads((path / "record.json").read_text())
    said = f"**Training this model spent ε = {at_most(record['epsilon']['verified'])} at δ = 1e-05**"
    statement = f"# {EVIL}\n\n{said}\n\n**{EVIL}** `{EVIL}`\n\n| {EVIL} |\n|---|\n| {EVIL} |\n\n> {EVIL}\n\n- {EVIL}\n"
    record["options"] = {EVIL: EVIL}
    record["history"][0][EVIL] = EVIL
    resealed(path, record, statement)
    (path / "attacks.json").write_text(json.dumps({"schema": "assay.attacks/1", "attacks": [{"attack": EVIL}]}))
    (run(tmp_path / "bad") / "record.json").write_text(json.dumps({"schema": EVIL}))
    read = Reader(page(tmp_path))
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in read.tags}
    assert not [key for _, attributes in read.tags for key in attributes if key.startswith("on")]
    assert EVIL.split("<img")[0].split("<script>")[1].split("</")[0] in read.text, "shown as it is, as text"


def test_the_page_needs_nothing_but_itself(tmp_path, run):
    run(tmp_path / "one")
    text = page(tmp_path)
    read = Reader(text)
    for tag, attributes in read.tags:
        assert tag not in ("link", "iframe", "object", "embed")
        for key in ("src", "href", "action"):
            assert attributes.get(key, "#").startswith(("#", "data:image/png"))
    policy = next(a["content"] for t, a in read.tags if t == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    assert not re.search(r"https?://", text)


def test_epsilon_is_rounded_to_the_side_that_is_true():
    assert ">1.001<" in epsilon(1.00001)
    assert ">≥ 1.999<" in epsilon(1.99999, lower_bound=True)
    assert ">∞<" in epsilon(math.inf)
    assert "–" in epsilon(None)


@pytest.mark.parametrize(
    ("changed", "words", "tone"),
    [
        (
            {"variant": "sound", "target": 2.0, "target_is": "verified", "claimed": 0.4, "verified": 1.999},
            "holds",
            Tone.GOOD,
        ),
        ({"variant": "sound", "target": 2.0, "target_is": "verified", "verified": 2.01}, "over its budget", Tone.BAD),
        ({"claimed": 1.0, "verified": 7.18}, "claim not supported", Tone.BAD),
        ({"claimed": 1.0, "verified": 1.005}, "holds", Tone.GOOD),
        ({"claimed": 1.0, "verified": 7.18, "audited": 6.0, "verdict": "claim-refuted"}, "claim refuted", Tone.BAD),
        ({"claimed": 1.0, "verified": 0.9, "audited": 2.0, "verdict": "bug"}, "implementation bug", Tone.BAD),
        ({"claimed": 1.0, "verified": 0.9, "audited": 1.1, "verdict": "suspect"}, "look into it", Tone.NOTE),
        ({"claimed": 1.0, "verified": 0.9, "audited": 1.1, "verdict": "consistent"}, "look into it", Tone.NOTE),
        ({"claimed": 1.0, "verified": 0.9, "audited": 0.8, "verdict": "consistent"}, "holds", Tone.GOOD),
        ({"claimed": 1.0, "verified": "inf"}, "no privacy", Tone.BAD),
        ({"claimed": "inf", "verified": 3.0}, "holds", Tone.GOOD),
        ({"claimed": None, "verified": 3.0}, "holds", Tone.GOOD),
    ],
)
def test_verdicts_in_words(tmp_path, run, changed, words, tone):
    run(tmp_path / "one", **changed)
    (group,) = groups(tmp_path)
    assert (verdict(group).words, verdict(group).tone) == (words, tone)
    assert words in Reader(page(tmp_path)).text


def test_seeds_are_one_setting_and_settings_that_differ_are_not(tmp_path, run):
    for seed in range(3):
        run(
            tmp_path / f"a{seed}",
            seed=seed,
            accuracy=0.8 + 0.01 * seed,
            verified=1.0 + 0.1 * seed,
            audited=0.5 + 0.1 * seed,
            verdict="consistent",
        )
    run(tmp_path / "b", clip="per-layer:2.0")
    first, second = groups(tmp_path)
    assert len(first.runs) == 3
    assert (first.mean, first.deviation) == (pytest.approx(0.81), pytest.approx(0.01))
    assert first.verified == pytest.approx(1.2), "the largest that was spent"
    assert first.audited == pytest.approx(0.5), "the smallest that was shown"
    assert second.setting == "clip per-layer:2.0"
    assert "81.00 ± 1.00" in Reader(page(tmp_path)).text


def test_a_predicted_number_has_its_error_and_its_column_is_named(tmp_path, run):
    found = []
    for target, result in (("days", {"test_mae": 1.5, "test_r2": 0.25}), ("back", {"test_accuracy": 0.75})):
        run(tmp_path / target)
        (one,) = Collector(tmp_path / target).collect().finished
        spec = {**one.spec, "names": {**one.spec["names"], "target": target}}
        found.append(replace(one, spec=spec, record={**one.record, "result": result}))
    number, classes = group_runs(found)
    assert (number.setting, classes.setting) == ("predicts days", "predicts back")
    assert (number.measured("test_mae"), number.mean) == (1.5, None)
    assert (classes.measured("test_mae"), classes.mean) == (None, 0.75)


def test_runs_that_protect_something_else_are_not_averaged_nor_in_one_chart(tmp_path, run):
    """An ε of a row beside one of a patient, on the same records: two settings, each with its unit beside its ε."""
    for unit in ("one row", "one patient"):
        run(tmp_path / unit, unit=unit)
    assert [group.unit for group in groups(tmp_path)] == ["one patient", "one row"]
    text = page(tmp_path)
    assert text.count("<title>Accuracy against verified ε: ") == 2
    heads = [words for words in Reader(text).words if words in ("ε audited", "unit of privacy", "accuracy (%)")]
    assert heads[:3] == ["ε audited", "unit of privacy", "accuracy (%)"]


def test_runs_are_counted_in_whole_numbers():
    series = Series(label="ε", style=0, points=[Point(x=x, y=x, tip="") for x in (0, 1, 2)], method="ε")
    drawn = str(charts.plot("runs", [series], Axis(label="runs", least=1, from_zero=True), Axis(label="ε")))
    numbers = re.findall(r'text-anchor="middle">([^<]+)<', drawn)
    assert numbers == ["0", "1", "2"]


def test_one_seed_that_shows_more_than_it_spent_is_not_hidden_by_the_others(tmp_path, run):
    run(tmp_path / "a", seed=0, claimed=1.0, verified=0.9, audited=0.5, verdict="consistent")
    run(tmp_path / "b", seed=1, claimed=1.0, verified=0.9, audited=1.1, verdict="suspect")
    run(tmp_path / "c", seed=2, claimed=1.0, verified=1.0)
    (group,) = groups(tmp_path)
    assert group.audited == 0.5
    assert verdict(group).tone is Tone.NOTE


def test_records_of_other_kinds_and_times_are_taken_as_they_are(tmp_path, run, resealed):
    """A federated record: other fields, others missing, rounds instead of epochs, a client as the unit."""
    path = run(tmp_path / "federated", unit="one client", method="fedavg")
    record = json.loads((path / "record.json").read_text())
    for name in (
        "clip",
        "micro_batch",
        "sampling",
        "options",
        "variant",
        "encode",
        "denoise",
        "training",
        "timing",
        "audit",
        "model",
    ):
        del record[name]
    record["clients"] = {"number": 100}
    record["result"] = {"test_accuracy": None}
    record["history"] = [
        {"round": n, "epsilon": 0.1 * n, "test_accuracy": 0.1 * n, "bytes_up": 1000 * n, "clients": [1, 2]}
        for n in range(1, 9)
    ]
    resealed(path, record)
    (path / "run.json").unlink()
    run(tmp_path / "other", status="budget-spent")
    read = Reader(page(tmp_path))
    assert "fedavg" in read.text
    assert "one client" in Reader(page(path)).text
    assert {"unit of privacy", "one client", "one image"} <= {word.strip() for word in read.words}
    assert "bytes up" in read.text
    assert "8000" in read.text
    assert "budget-spent" in read.text
    assert not Collector(tmp_path).collect().damaged


def test_tables_are_tables(tmp_path, run, unfinished):
    run(tmp_path / "a")
    run(tmp_path / "b", method="dpsgd", data="mnist")
    unfinished(tmp_path / "c")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/run.json").write_text("{")
    read = Reader(page(tmp_path))
    kinds = [tag for tag, _ in read.tags]
    sortable = [a for t, a in read.tags if t == "table" and a.get("class") == "sortable"]
    assert len(sortable) == 4, "the headline, the unfinished, the damaged, and what attackers can find out"
    assert kinds.count("caption") >= len(sortable)
    assert all(a.get("scope") for t, a in read.tags if t == "th")
    assert {a["name"] for t, a in read.tags if t == "input"} == {"method", "data"}
    assert all(a.get("aria-label") for t, a in read.tags if t == "svg" and a.get("role") == "img")
    assert 'lang="en"' in page(tmp_path)


finite = st.floats(min_value=1e-3, max_value=1e6)


@given(
    st.lists(
        st.tuples(finite | st.sampled_from([0.0, math.inf]), st.floats(0, 1), st.floats(0, 0.3)),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
@example([(499999.9999999999, 0.0, 0.0)], True)  # not below its own round number
def test_every_mark_is_inside_its_chart(points, log):
    made = [Point(x=x, y=y, low=max(0, y - s), high=y + s, tip="t") for x, y, s in points]
    drawn = charts.plot(
        "t",
        [Series(label="a", style=2, method="m", points=made)],
        Axis(label="x", log=log),
        Axis(label="y", percent=True),
    )
    marks = [a for t, a in Reader(drawn).tags if t == "path" and a.get("class") == "mark"]
    assert len(marks) == len(points)
    for mark in marks:
        x, y = map(float, re.match(r"M(\S+) (\S+?)[a-zA-Z]", mark["d"]).groups())
        assert 0 <= x <= WIDTH
        assert -7 <= y <= HEIGHT
    boxes = [
        _box(*found)
        for found in re.findall(r'<text x="([^"]+)" y="([^"]+)" text-anchor="(middle|end)">([^<]*)<', drawn)
    ]
    assert boxes
    name = (3, 22)  # where the name of the upright axis is
    for i, (left, right, top, bottom) in enumerate(boxes):
        assert left > name[1] or right < name[0]
        for a, b, c, d in boxes[i + 1 :]:
            assert right <= a or b <= left or bottom <= c or d <= top, "labels that touch"


def test_a_run_that_spent_nothing_is_drawn_beside_others(tmp_path, run):
    """Its ceiling ended it before the first step.

    It lies at the low end of the axis, and leaves the others where they are.
    """
    run(tmp_path / "a", method="dpsgd", verified=1.0)
    run(tmp_path / "b", method="dpsgd", verified=2.0, target=3)
    before = [p for p in _marks(page(tmp_path)) if "verified ε" in p["data-tip"]]
    run(tmp_path / "none", method="dpsgd", verified=0.0, target=4)
    after = {p["data-tip"]: p["d"] for p in _marks(page(tmp_path)) if "verified ε" in p["data-tip"]}
    assert len(before) == 2
    assert len(after) == 3
    assert all(after[mark["data-tip"]] == mark["d"] for mark in before)
    left = {tip: float(re.match(r"M(\S+) ", d).group(1)) for tip, d in after.items()}
    assert "ε 0 " in min(left, key=left.get)


def _marks(text):
    return [a for t, a in Reader(text).tags if t == "path" and a.get("class") == "mark" and "data-tip" in a]


def _box(x, y, anchor, text):
    """About where a label is drawn, with letters as wide as they get."""
    width = 8.8 * len(text)
    right = float(x) + (width / 2 if anchor == "middle" else 0)
    return right - width, right, float(y) - 14, float(y) + 4


def test_three_hundred_runs_are_quick(tmp_path, trained, resealed):
    text = (trained / "record.json").read_text()
    for n in range(300):
        path = tmp_path / f"m{n % 7}" / f"{n}"
        path.mkdir(parents=True)
        record = json.loads(text)
        record |= {"method": f"m{n % 7}", "seed": n % 3, "history": record["history"] * 10}
        record["epsilon"] |= {"verified": 0.5 + n / 100, "target": 1 + n // 21}
        resealed(path, record)
        (path / "run.json").write_text((trained / "run.json").read_text())
        (path / "statement.md").write_text((trained / "statement.md").read_text())
    begun = time.process_time()
    made = page(tmp_path)
    assert time.process_time() - begun < 15
    assert len(made) < 12e6
    assert made.count("<details") >= 300


def test_series_beyond_the_number_of_colours_can_be_told_apart():
    series = [Series(label=str(i), style=i, method="m", points=[Point(x=1, y=0.5, tip="")]) for i in range(20)]
    marks = re.findall(r'<g class="(series s\d)[^"]*"><path d="M([^"]*)"', str(legend(series)))
    assert len(marks) == len(set(marks)) == 20


def test_curves_of_two_epsilons_have_two_colours_and_names(tmp_path, run):
    for target in (1.0, 8.0):
        run(tmp_path / f"at{target:g}", target=target, claimed=target, verified=0.9 * target)
    text = page(tmp_path)
    assert "ε 1" in Reader(text).text
    assert "ε 8" in Reader(text).text
    course = text[text.index("Verified ε spent while training") - 20_000 :]
    assert {"series s0 hollow", "series s1 hollow"} <= {a.get("class") for _, a in Reader(course).tags}


def test_a_claim_of_infinity_has_its_reason(tmp_path, run):
    run(tmp_path / "one", claimed="inf", verified=3.0)
    assert "claimed is ∞ because the paper's accountant finds no finite ε" in Reader(page(tmp_path)).text


def test_axes_end_beyond_the_data():
    points = [Point(x=1.0, y=0.17, tip="t"), Point(x=14.15, y=0.89, tip="t")]
    drawn = charts.plot(
        "t",
        [Series(label="a", style=0, method="m", points=points)],
        Axis(label="x", log=True),
        Axis(label="y", percent=True),
    )
    numbers = re.findall(r'text-anchor="(middle|end)">([\d.]+)', drawn)
    assert max(float(n) for where, n in numbers if where == "end") >= 89
    assert max(float(n) for where, n in numbers if where == "middle") >= 14.15


def test_an_axis_of_shares_ends_at_100_percent():
    points = [Point(x=1.0, y=0.982, tip="t")]
    one = Series(label="a", style=0, method="m", points=points)
    drawn = charts.plot("t", [one], Axis(label="x"), Axis(label="y", percent=True))
    assert max(map(float, re.findall(r"([\d.]+) %", drawn))) == 100
