"""Make the picture of the report that the README shows: `make picture`, which needs Chromium and its driver.

    python -m tools.picture docs/assets/report.png

Three runs on scikit-learn's digits are trained, audited and put on one page; a headless browser takes the picture.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver

MOST_BYTES = 250_000
WIDTH = 1160
_TRAIN = shlex.split(
    "train --data digits --model lenet5 --epochs 10 --batch-size 256 --epsilon 1 --delta 1e-4 --seed 0"
)
_RUNS = {
    "dpsgd": [],
    "gredp": ["--method", "gredp", "--variant", "published"],
    "spectral": ["--method", "spectral", "--variant", "published"],
}


def assay(*arguments: str) -> None:
    """Run a command of Assay; an error ends this program."""
    print("assay", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "assay", *arguments], check=True, stdout=subprocess.DEVNULL)


def write_report(folder: Path) -> Path:
    """Train and audit the runs, and write their report."""
    for name, options in _RUNS.items():
        assay(*_TRAIN, *options, "--out", str(folder / name))
        assay("audit", str(folder / name), "--releases", "4000", "--seed", "0")
    assay("report", str(folder))
    return folder / "report.html"


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A headless Chromium, which ends with the block."""
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise SystemExit("no Chromium with its driver: on Debian, apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # --no-sandbox: as root, in a container, Chromium does not start otherwise; the page is our own
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def resize(chrome: webdriver.Chrome, height: int, width: int = WIDTH) -> None:
    """Give the page itself this size, and not a window with its bars."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def save(chrome: webdriver.Chrome, picture: Path) -> None:
    """Save what the page shows as a PNG file; one that is too large for a repository is an error."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    chrome.save_screenshot(str(picture))
    size = picture.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{picture} has {size} bytes, more than {MOST_BYTES}")
    print(f"{picture} ({size} bytes)")


def photograph(page: Path, picture: Path) -> None:
    """Save the page, from its top to the end of its first table, as a PNG file."""
    with browser() as chrome:
        chrome.get(page.as_uri())
        resize(chrome, 1000)
        end = "return Math.ceil(document.querySelector('table').getBoundingClientRect().bottom) + 24"
        resize(chrome, chrome.execute_script(end))
        save(chrome, picture)


def main() -> None:
    """Write the picture to the path given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path, nargs="?", default=Path("docs/assets/report.png"))
    picture = parser.parse_args().picture
    with tempfile.TemporaryDirectory() as folder:
        photograph(write_report(Path(folder) / "study"), picture)


if __name__ == "__main__":
    main()
