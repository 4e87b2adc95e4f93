"""``make screenshots``: the pictures of docs/ui.md, from fresh runs and a real federation.

They are made from real records, so that they show what a user will see.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Browser, Page

from fedast.cli.ui import Federations
from fedast.report.ui.library import Library
from fedast.report.ui.server import serving
from tests.ui.test_browser import a_browser, wait_for_points

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "src" / "fedast" / "run" / "demo.toml"
ALGORITHMS = ("fedast-d", "fedast-s", "fedast-nobuffer", "sync-st")
PATIENCE = 120.0


def fedast(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "fedast", *arguments], check=True)


def main(kept: Path | None = None) -> None:
    """``kept``: a folder in which an earlier call has left the runs."""
    with tempfile.TemporaryDirectory() as scratch, a_browser() as browser:
        runs = kept or Path(scratch) / "runs"
        if not runs.exists():
            chosen = [part for name in ALGORITHMS for part in ("--algorithm", name)]
            fedast(
                "compare", str(DEMO), *chosen, "--seeds", "3", "--out", str(runs),
                "--device", "cpu", "--trainer", "serial", "--quiet",
            )  # fmt: skip
        _shoot_runs(browser, runs)
        _shoot_federation(browser, Path(scratch) / "federation")


def _shoot_runs(browser: Browser, runs: Path) -> None:
    with serving(Library([runs]), 0) as (address, _):
        page = _opened(browser, address)
        page.get_by_role("link", name="fedast-d/seed-1").wait_for()
        _save(page, "ui-runs", 620)
        page.get_by_role("link", name="Compare all").click()
        wait_for_points(page, "Learning curves of digits-mlp", 100)
        _save(page, "ui-compare", 900)
        page.goto(page.url.partition("#")[0] + "#/runs")
        page.get_by_role("link", name="fedast-d/seed-1").click()
        wait_for_points(page, "Learning curves: accuracy", 10)
        _save(page, "ui-run", 1000)
        dark = _opened(browser, address, dark=True)
        dark.get_by_role("link", name="fedast-d/seed-1").click()
        wait_for_points(dark, "Learning curves: accuracy", 10)
        dark.get_by_text("Load by client").scroll_into_view_if_needed()
        dark.mouse.wheel(0, 700)
        _save(dark, "ui-run-dark", 900)
        phone = _opened(browser, address, width=390)
        phone.get_by_role("link", name="fedast-d/seed-1").click()
        wait_for_points(phone, "Learning curves: accuracy", 10)
        _save(phone, "ui-phone", 844)


def _shoot_federation(browser: Browser, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fedast("federation", "init", str(folder), "--clients", "6", "--port", str(port))
    config = folder / "federation.toml"
    config.write_text(config.read_text().replace("target = 0.93", "target = 0.9999"))
    fedast("federation", "up", str(folder), "--detach", "--quiet")
    try:
        with serving(Library([folder]), 0, Federations()) as (address, _):
            page = _opened(browser, address)
            page.get_by_role("link", name="Federation", exact=True).click()
            page.get_by_text("Models in use").wait_for(timeout=1000 * PATIENCE)
            time.sleep(6)  # a few looks at it, for the rate
            _save(page, "ui-federation", 900)
    finally:
        with suppress(subprocess.CalledProcessError):
            fedast("federation", "down", str(folder))


def _opened(browser: Browser, address: str, *, width: int = 1280, dark: bool = False) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address)
    return page


def _save(page: Page, name: str, height: int) -> None:
    width = (page.viewport_size or {"width": 1280})["width"]
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(700)
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"docs/images/{name}.png")


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        sys.exit("chromium is not on the PATH")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
