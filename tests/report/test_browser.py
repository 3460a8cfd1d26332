"""The page in a real browser: sorting, filtering, themes, keyboard, no script but its own, quick with 300 runs."""

import base64
import json
import shutil
import threading
import time
import urllib.request

import pytest

from assay.report.collect import Collector
from assay.report.page import render
from assay.report.serve import ReportServer

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with its driver on this machine")
EVIL = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--window-size=1200,900",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def tree(tmp_path, run, unfinished, resealed):
    run(tmp_path / "t/a", accuracy=0.9, claimed=1.0, verified=7.18)
    run(
        tmp_path / "t/b",
        method="dpsgd",
        variant="sound",
        accuracy=0.8,
        verified=0.5,
        claimed=0.6,
        target=0.5,
        target_is="verified",
    )
    run(tmp_path / "t/c", method="lssgd", variant="sound", accuracy=0.85, verified="inf", claimed=None, target=None)
    run(
        tmp_path / "t/d",
        method="dpsgd",
        variant="sound",
        data="mnist",
        accuracy=0.7,
        verified=12.0,
        claimed=14.0,
        target=12.0,
    )
    hostile = run(tmp_path / "t/e", method=EVIL, model=EVIL, data=EVIL, notes=EVIL)
    record, said = json.loads((hostile / "record.json").read_text()), (hostile / "statement.md").read_text()
    resealed(hostile, record, f"{said}\n\n# {EVIL}\n\n{EVIL}\n")
    unfinished(tmp_path / "t/f")
    return tmp_path / "t"


@pytest.fixture
def opened(browser, tree):
    """The page of the tree, from disk."""
    path = tree.parent / "report.html"
    path.write_text(render(Collector(tree).collect()), encoding="utf-8")
    browser.get(path.as_uri())
    browser.execute_script("sessionStorage.clear()")
    browser.get(path.as_uri())
    return browser


def seen(browser, selector):
    return [e for e in browser.find_elements("css selector", selector) if e.is_displayed()]


def headline(browser):
    return [row.text.split("\n")[0] for row in seen(browser, "section[aria-labelledby=headline] tbody tr th")]


def test_no_script_but_its_own_runs_and_nothing_is_fetched(opened):
    assert opened.title == "Assay report"
    time.sleep(0.2)
    assert opened.title == "Assay report"
    assert EVIL in opened.find_element("tag name", "main").text
    assert opened.get_log("browser") == []
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    # and even a script that had got in would be stopped by the page's policy
    opened.execute_script(
        "const s = document.createElement('script'); s.textContent = \"document.title = 'pwned'\";"
        " document.body.append(s)"
    )
    assert opened.title == "Assay report"


def column(browser, name):
    heads = browser.find_elements("css selector", "section[aria-labelledby=headline] thead th")
    return next(i for i, head in enumerate(heads) if head.text.split("\n")[0].startswith(name)), heads


def test_sorting_by_number_with_infinity_last_and_told_to_screen_readers(opened):
    at, heads = column(opened, "ε verified")
    heads[at].find_element("tag name", "button").click()
    assert heads[at].get_attribute("aria-sort") == "ascending"
    cells = [
        r.find_elements("css selector", "th, td")[at].text
        for r in seen(opened, "section[aria-labelledby=headline] tbody tr")
    ]
    assert [cells[0], cells[-2], cells[-1]] == ["0.5", "12", "∞"]
    heads[at].find_element("tag name", "button").send_keys(Keys.ENTER)
    assert heads[at].get_attribute("aria-sort") == "descending"
    cells = [
        r.find_elements("css selector", "th, td")[at].text
        for r in seen(opened, "section[aria-labelledby=headline] tbody tr")
    ]
    assert cells[0] == "∞"
    at, heads = column(opened, "ε claimed")
    for _ in range(2):
        heads[at].find_element("tag name", "button").click()
        cells = [
            r.find_elements("css selector", "th, td")[at].text
            for r in seen(opened, "section[aria-labelledby=headline] tbody tr")
        ]
        assert cells[-1] == "–", "what is missing is last either way"
    assert [head.get_attribute("aria-sort") for head in heads].count("none") == len(heads) - 1


def test_filtering_by_method_and_data(opened):
    assert len(headline(opened)) == 5
    box = opened.find_element("css selector", "input[name=method][value=dpsgd]")
    box.send_keys(Keys.SPACE)
    assert len(headline(opened)) == 3
    assert not [r for r in seen(opened, "details.run") if r.get_attribute("data-method") == "dpsgd"]
    assert not [m for m in seen(opened, "svg .series") if m.get_attribute("data-method") == "dpsgd"]
    assert opened.find_element("id", "shown").text == "3 of 5 runs shown"
    box.click()
    opened.find_element("css selector", "input[name=data][value=mnist]").click()
    assert len(headline(opened)) == 4
    assert "mnist, logistic" not in [h.text for h in seen(opened, ".panel h3")]


def test_values_by_pointer_and_by_keyboard(opened):
    chart = opened.find_element("css selector", ".panel svg.chart")
    marks = chart.find_elements("css selector", ".mark")
    webdriver.ActionChains(opened).move_to_element(marks[0]).perform()
    tip = opened.find_element("id", "tip")
    assert tip.is_displayed()
    assert tip.text == marks[0].get_attribute("data-tip")
    opened.execute_script("arguments[0].focus()", chart)
    told = []
    for _ in marks:
        webdriver.ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
        told.append(tip.text)
    assert sorted(told) == sorted(mark.get_attribute("data-tip") for mark in marks)
    webdriver.ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def luminance(colour):
    parts = [int(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_can_be_read(opened, theme):
    button = opened.find_element("id", "theme")
    while theme not in button.text:
        button.click()
    style = "const s = getComputedStyle(arguments[0]); return [s.color, s.backgroundColor, s.fill]"
    page = opened.execute_script(style, opened.find_element("tag name", "body"))
    assert (luminance(page[1]) < 0.2) == (theme == "dark")
    assert contrast(page[0], page[1]) > 7
    hint = opened.execute_script(style, opened.find_element("css selector", ".hint"))
    assert contrast(hint[0], page[1]) > 4.5
    for badge in opened.find_elements("css selector", ".badge"):
        colours = opened.execute_script(style, badge)
        assert contrast(colours[0], colours[1]) > 4.5
    card = opened.execute_script(style, opened.find_element("css selector", "figure"))[1]
    for mark in opened.find_elements("css selector", ".legend .series:not(.hollow) .mark"):
        assert contrast(opened.execute_script(style, mark)[2], card) > 3


def test_the_system_decides_where_the_reader_does_not(opened):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colour = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    printed = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    controls = seen(opened, ".controls, #theme")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert luminance(colour) < 0.1
    assert luminance(printed) == pytest.approx(1), "paper is white"
    assert controls == []


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out_and_no_labels_touch(opened, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        overlapping = opened.execute_script(
            """
            const found = [];
            for (const chart of document.querySelectorAll(".panel svg.chart")) {
              const boxes = [...chart.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
              boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
                if (p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom) found.push([a, b]);
              }));
            }
            return found;
            """
        )
        assert overlapping == []
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_prints(opened):
    made = opened.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert base64.b64decode(made["data"]).startswith(b"%PDF")


def test_a_statement_is_printed_on_one_page(opened):
    """A4 without margins of 10 mm has 718 by 1047 pixels of the style sheet."""
    page = {"width": 718, "height": 1047, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", page)
    try:
        heights = opened.execute_script(
            """
            document.querySelectorAll("details").forEach((one) => { one.open = true; });
            return [...document.querySelectorAll(".statement")].map((one) => one.getBoundingClientRect().height);
            """
        )
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert heights
    assert max(heights) <= 1047


def test_three_hundred_runs_open_and_sort_quickly(browser, tmp_path, trained, resealed):
    record = json.loads((trained / "record.json").read_text())
    for n in range(300):
        path = tmp_path / "t" / f"{n}"
        path.mkdir(parents=True)
        record |= {"method": f"m{n % 7}", "history": (record["history"] * 12)[:12]}
        record["epsilon"] |= {"verified": 0.5 + n / 100, "target": 1 + n}
        resealed(path, record)
        (path / "statement.md").write_text((trained / "statement.md").read_text())
    (tmp_path / "report.html").write_text(render(Collector(tmp_path / "t").collect()), encoding="utf-8")
    browser.get((tmp_path / "report.html").as_uri())
    timing = browser.execute_script(
        """
        const begun = performance.now();
        document.querySelectorAll("section[aria-labelledby=headline] thead button")[3].click();
        document.querySelector("input[name=method]").click();
        document.body.getBoundingClientRect();
        return performance.now() - begun;
        """
    )
    assert timing < 3000, "milliseconds, on a machine that does other things too"
    assert browser.find_element("id", "shown").text == "257 of 300 runs shown"


def test_a_served_page_follows_the_study(browser, tmp_path, run):
    run(tmp_path / "t/a", accuracy=0.5)
    server = ReportServer(tmp_path / "t", "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        browser.get(server.address)
        assert browser.find_element("css selector", "h2#runs .count").text == "1"
        run(tmp_path / "t/b", method="dpsgd")
        end = time.monotonic() + 30
        while (
            browser.execute_script("const c = document.querySelector('h2#runs .count'); return c && c.textContent")
            != "2"
        ):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert "dpsgd" in browser.find_element("tag name", "main").text
        with urllib.request.urlopen(server.address + "state") as answer:
            assert json.load(answer)["token"]
    finally:
        server.shutdown()
        server.server_close()
