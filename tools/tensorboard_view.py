"""Make the picture of TensorBoard in the documentation: `make picture`, which needs Chromium and its driver.

    python -m tools.tensorboard_view docs/assets/tensorboard.png

Two runs on scikit-learn's digits log to TensorBoard, which shows them on this machine; a headless browser takes the
picture.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium.webdriver.support.wait import WebDriverWait
from tools.picture import assay, browser, resize, save

_RUNS = {"epsilon-1": "1", "epsilon-8": "8"}
_PATIENCE = 120.0  # seconds until TensorBoard and its charts are there, on a busy machine
_WIDTH, _HEIGHT = 1440, 500
_SHOWN = "accuracy/%7Cepsilon/%7Closs/"
_CLOSE = "document.querySelector('.settings-button, button[aria-label*=ettings], .right-pane button')?.click()"
_CHARTS = "return document.querySelectorAll('scalar-card .chart-container canvas, scalar-card svg').length"


def train(folder: Path) -> None:
    """Train the runs."""
    for name, epsilon in _RUNS.items():
        options = ["--data", "digits", "--model", "logistic", "--epochs", "20", "--batch-size", "256", "--lr", "2"]
        options += ["--epsilon", epsilon, "--seed", "0", "--log", "tensorboard", "--out", str(folder / name)]
        assay("train", *options)


def photograph(folder: Path, picture: Path) -> None:
    """Show the logs of a folder in TensorBoard, and save its page of scalars."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(folder),
        "--port",
        str(port),
        "--load_fast=false",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        with browser() as chrome:
            resize(chrome, _HEIGHT, _WIDTH)
            chrome.get(f"http://127.0.0.1:{port}/?darkMode=false&smoothing=0&tagFilter={_SHOWN}#timeseries")
            WebDriverWait(chrome, _PATIENCE).until(lambda page: page.execute_script(_CHARTS) >= 3)
            chrome.execute_script(_CLOSE)
            time.sleep(5)  # lines are drawn after their charts are there
            save(chrome, picture)
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise SystemExit("TensorBoard did not start")


def main() -> None:
    """Write the picture to the path given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path, nargs="?", default=Path("docs/assets/tensorboard.png"))
    picture = parser.parse_args().picture
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder))
        photograph(Path(folder), picture)


if __name__ == "__main__":
    main()
