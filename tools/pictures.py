"""Make the pictures of the README and the docs anew, with Chromium.

``python tools/pictures.py`` runs digit-pairs in closed form, and trains it with a coordinator and
three parties on this machine. It photographs the pages as a reader sees them, and writes
``docs/images/*.png``. ``docs/images/pages.json`` has a hash of the files that each page is made of:
``tests/test_pictures.py`` fails where one has changed since. It takes two minutes.

``--narrow FOLDER`` also writes each page as a telephone shows it, to be looked at.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RECORD = IMAGES / "pages.json"
SOURCE = ROOT / "src" / "fedunseen"
_BASE = ("pages/report/base.html", "pages/report/style.css")
_REPORT = (*_BASE, "pages/report/report.html", "pages/report/parts.html")
_SERVE = (*_BASE, "pages/serve/base.html", "pages/serve/style.css")
_SECTION = "pages/report/sections"
SOURCES: dict[str, tuple[str, ...]] = {
    "report.png": (
        *_REPORT,
        *(f"{_SECTION}/{name}.html" for name in ("header", "summary", "numbers", "chosen")),
        "evaluation/summary.py",
    ),
    "holdings.png": (
        *_REPORT,
        *(f"{_SECTION}/{name}.html" for name in ("data_distribution", "map", "coverage")),
    ),
    "playground.png": (*_SERVE, "pages/serve/page.html"),
    "live.png": (*_SERVE, "pages/serve/dashboard.html"),
}
"""Picture -> the files of its page, below ``src/fedunseen``."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PARTIES = ("north", "south", "west")
_NARROW = {"width": 390, "height": 1500}
_SIZE = 1280, 940  # of the two pictures that stand side by side in the README
_HOLDINGS = "section:has(> h2:text('Who holds which classes'))"


def digest(picture: str) -> str:
    """Return a hash of the files that a picture's page is made of."""
    content = b"\0".join((SOURCE / name).read_bytes() for name in SOURCES[picture])
    return hashlib.sha256(content).hexdigest()


def write_picture(photo: bytes, path: Path) -> None:
    """Write a screenshot with 256 colors, which takes a third of the space."""
    with Image.open(io.BytesIO(photo)) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def fedunseen(*words: object) -> list[str]:
    """Return the command line of a command."""
    return [sys.executable, "-m", "fedunseen", *map(str, words)]


@contextmanager
def process(log: Path, *words: object) -> Iterator[Path]:
    """Run a command while the block lasts; yield the file with what it says."""
    with log.open("wb") as file:
        started = subprocess.Popen(fedunseen(*words), stdout=file, stderr=file)
    try:
        yield log
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(60)


def announced(log: Path, what: str) -> str:
    """Wait until a process has said where its page is, and return the address."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        for line in log.read_text("utf-8", "replace").splitlines():
            if what in line:
                return next(word for word in line.split() if word.startswith("http"))
        time.sleep(0.2)
    raise SystemExit(f"{log} names no page: {log.read_text('utf-8', 'replace')[-2000:]}")


class Photographer:
    """Takes pictures of pages.

    Args:
        browser: Chromium, as Playwright opened it.
        out: folder of the pictures.
        narrow: folder of the pictures as a telephone shows the pages; None takes none.
    """

    def __init__(self, browser: Any, out: Path, narrow: Path | None) -> None:
        self.browser = browser
        self.out = out
        self.narrow = narrow

    def take(
        self,
        name: str,
        url: str,
        size: tuple[int, int],
        prepare: Callable[[Any], None],
        part: str | None = None,
    ) -> None:
        """Open a page, prepare it, and write a picture of its top, or of a part of it."""
        views: list[tuple[Path, dict[str, int]]] = [
            (self.out / name, {"width": size[0], "height": size[1]})
        ]
        if self.narrow is not None:
            views.append((self.narrow / name, _NARROW))
        page = self.browser.new_page(viewport=views[0][1])
        page.goto(url)
        prepare(page)
        for path, viewport in views:
            page.set_viewport_size(viewport)
            page.wait_for_timeout(500)
            shot = page if part is None else page.locator(part)
            write_picture(shot.screenshot(), path)
        page.close()


def given_47(page: Any) -> None:
    """Give the page of the service a scan of 47, and wait for the answer."""
    page.wait_for_selector("#work:not([hidden])")
    page.set_input_files("#file", ROOT / "examples" / "digit-pairs" / "47.png")
    page.wait_for_selector("#ranking .number")


def in_training(page: Any) -> None:
    """Wait until the live page shows some rounds."""
    some = re.compile(r"^round (9|1\d) of")
    page.locator("#round").filter(has_text=some).wait_for(timeout=300_000)


def closed_form(photographer: Photographer, folder: Path) -> None:
    """Photograph the report of a run in closed form, and the page of its service."""
    run = folder / "run"
    subprocess.run(
        fedunseen("run", "digit-pairs-gaussian", "--out", run), check=True, capture_output=True
    )
    report = (run / "report.html").as_uri()
    photographer.take("report.png", report, _SIZE, lambda page: None)
    photographer.take("holdings.png", report, _SIZE, lambda page: None, _HOLDINGS)
    with process(folder / "serve.log", "serve", run, "--port", 0) as log:
        url = announced(log, "serving")
        photographer.take("playground.png", url, _SIZE, given_47)


def federation(photographer: Photographer, folder: Path) -> None:
    """Photograph the live page of a federation."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    few = ("--set", "data.train_per_class=60", "--set", "strategy.rounds=20")
    dealt = ("--set", "partition.clients=3", "--set", "data.train_per_class=60")
    subprocess.run(
        fedunseen(
            "data", "deal", "digit-pairs", *dealt, "--parties", ",".join(PARTIES),
            "--out", folder / "parties",
        ),
        check=True,
        capture_output=True,
    )  # fmt: skip
    host = (
        "host", "digit-pairs", *few, "--set", "evaluation.selection=last", "--insecure",
        "--parties", ",".join(PARTIES), "--address", address, "--out", folder / "three",
        "--dashboard-at", "127.0.0.1:0",
    )  # fmt: skip
    with process(folder / "host.log", *host) as log:
        url = announced(log, "live page")
        joined = [
            subprocess.Popen(
                fedunseen(
                    "join", address, "--insecure", "--name", name, "--data",
                    folder / "parties" / name, "--state", folder / "states" / name,
                    "--out", folder / "models" / name,
                ),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in PARTIES
        ]  # fmt: skip
        try:
            photographer.take("live.png", url, (1120, 890), in_training)
        finally:
            for party in joined:
                party.send_signal(signal.SIGINT)
                party.wait(60)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--narrow", type=Path, metavar="FOLDER", help="also as on a telephone")
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("there is no Chromium on this machine: apt-get install chromium")
    if chosen.narrow is not None:
        chosen.narrow.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        os.chdir(made)
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        photographer = Photographer(browser, IMAGES, chosen.narrow and chosen.narrow.resolve())
        closed_form(photographer, Path(made))
        federation(photographer, Path(made))
        browser.close()
    record = {name: digest(name) for name in sorted(SOURCES)}
    RECORD.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
