"""The page as a person meets it: in a real browser (``make ui-test``)."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from fedast.records.run import RESULT, SERIES
from fedast.report.ui.app import page_files
from fedast.report.ui.library import Library
from fedast.report.ui.server import serving
from tests.ui.samples import write_run, write_sample_sweep

pytestmark = pytest.mark.browser
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60_000
"""Milliseconds: the machine may be slow."""
expect.set_options(timeout=PATIENCE)

Open = Callable[..., Page]


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.fail("no browser on the PATH: install chromium")


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """Opens the page of a folder; at the end, nothing may have been said to the console."""
    said: list[str] = []
    with ExitStack() as stack:

        def go(folder: Path, *, width: int = 1440, scheme: str = "light") -> Page:
            library = Library([folder])
            address, _ = stack.enter_context(serving(library, 0))
            assert library.wait_for_first_look(60)
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            page.goto(address)
            return page

        yield go
    assert said == []


def points(page: Page, label: str) -> int:
    """How many points a chart draws."""
    return int(page.get_by_label(label, exact=True).get_attribute("data-points") or 0)


def wait_for_points(page: Page, label: str, least: int) -> None:
    page.wait_for_function(
        "([label, least]) => Number(document.querySelector(`[aria-label='${label}']`)"
        "?.dataset.points ?? 0) >= least",
        arg=[label, least],
    )


def rows(page: Page) -> list[str]:
    return page.locator("table.runs tbody .c-name").all_inner_texts()


def test_a_live_run_is_watched_to_its_end(show: Open, tmp_path: Path) -> None:
    page = show(tmp_path)
    expect(page.get_by_text("No runs here yet")).to_be_visible()
    command = [
        sys.executable, "-m", "fedast", "run", str(EXAMPLES / "quickstart.toml"), "-q",
        "--out", str(tmp_path / "live"), "--set", "simulation.max_time=1500",
        "--set", "tasks.digits-mlp.target=1.0", "--set", "tasks.synthetic.target=1.0",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        try:
            page.get_by_role("link", name="live").click()
            wait_for_points(page, "Learning curves: accuracy", 2)
            expect(page.locator("h1 .pill")).to_have_text(re.compile("running|finished"))
            first = points(page, "Learning curves: accuracy")
            wait_for_points(page, "Learning curves: accuracy", first + 10)
            expect(page.locator("h1 .pill")).to_have_text("finished")
            assert run.wait(60) == 3  # nobody reaches these targets
        finally:
            run.kill()
    expect(page.get_by_text("Fairness of participation")).to_be_visible()
    page.get_by_role("button", name="Real time").click()
    expect(page.get_by_role("button", name="Real time")).to_have_attribute("aria-pressed", "true")
    assert points(page, "Learning curves: accuracy") > first


def test_runs_are_filtered_chosen_and_compared(show: Open, tmp_path: Path) -> None:
    for algorithm in ("fedast-d", "sync-st"):
        for seed in (1, 2):
            write_run(tmp_path / algorithm / f"seed-{seed}", algorithm=algorithm, seed=seed)
    write_run(tmp_path / "fast", server_lr=0.8)
    page = show(tmp_path)
    expect(page.locator("table.runs tbody tr")).to_have_count(5)
    page.get_by_label("Filter runs").fill("sync")
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    expect(page.get_by_text("2 of 5 runs")).to_be_visible()
    page.get_by_label("Filter runs").fill("server_lr=0.8")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)
    assert rows(page) == ["fast"]
    page.get_by_label("Filter runs").fill("nothing like this")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Key").select_option("algorithm.server_lr")
    page.get_by_label("Value").select_option("0.4")
    expect(page.locator("table.runs tbody tr")).to_have_count(4)
    page.get_by_label("Choose all runs that are shown").check()
    page.get_by_role("link", name="Compare 4").click()
    expect(page.get_by_text("4 runs in 2 groups")).to_be_visible()
    wait_for_points(page, "Learning curves of digits", 100)
    expect(page.locator("#times")).to_contain_text("(2 of 2)")
    expect(page.locator("#differences")).to_contain_text("algorithm.name")
    page.get_by_label("Group by").select_option("seed")
    expect(page.locator(".legend")).to_contain_text("seed = 2 (2)")
    page.get_by_label("Group by").select_option("")
    expect(page.get_by_text("4 runs in 4 groups")).to_be_visible()
    page.locator(".legend button").first.click()
    expect(page.locator(".legend [aria-pressed=false]")).to_have_count(1)
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="sync-st/seed-1").click()
    page.get_by_label("Difference to").select_option("fedast-d/seed-1")
    expect(page.locator("table.config tbody")).to_contain_text("algorithm.name")
    expect(page.locator("table.config tbody tr")).to_have_count(1)


def test_broken_records_and_strange_names_are_only_shown(show: Open, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    task = "<script>alert(2)</script>"
    write_run(tmp_path / name, algorithm="<b>bold</b>", tasks=(task, "letters"))
    broken = write_run(tmp_path / "broken")
    (broken / RESULT).write_text('{"schema": 99, "why": "<script>alert(3)</script>"}')
    page = show(tmp_path)
    alerts: list[str] = []

    def note(dialog: Dialog) -> None:
        alerts.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    expect(page.locator("tr.broken .why")).to_contain_text("has schema 99; this version of fedast")
    expect(page.locator("tr.broken input")).to_be_disabled()
    page.get_by_role("link", name=name).click()
    expect(page.locator("h1")).to_contain_text(name)
    wait_for_points(page, "Learning curves: accuracy", 10)
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name=task).first).to_be_visible()
    assert page.locator("main script, main img, main b b").count() == 0
    assert alerts == []


def test_a_sweep_is_a_table_and_lines(show: Open, tmp_path: Path) -> None:
    write_sample_sweep(tmp_path / "rates", trials=14)
    page = show(tmp_path)
    page.get_by_role("link", name="Sweep").click()
    expect(page.locator(".parallel .trial")).to_have_count(11)  # of 14, 2 pruned and 1 running
    expect(page.locator("tbody tr")).to_have_count(14)
    page.get_by_role("button", name="algorithm.ratio").click()
    expect(page.locator("tbody tr").first.locator("td").nth(4)).to_have_text("4")
    page.get_by_role("link", name="open").first.click()
    wait_for_points(page, "Learning curves: accuracy", 10)


def test_a_phone_the_dark_and_the_keyboard(show: Open, tmp_path: Path) -> None:
    write_run(tmp_path / "a-run-with-a-rather-long-name" / "and-a-folder" / "seed-1")
    write_run(tmp_path / "other")
    page = show(tmp_path, width=390, scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for view in ("#/runs", "#/compare"):
        page.goto(page.url.partition("#")[0] + view)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="other").focus()
    page.keyboard.press("Enter")
    wait_for_points(page, "Learning curves: accuracy", 10)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Switch to light").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    wait_for_points(page, "Learning curves: accuracy", 10)
    expect(page.get_by_role("button", name="Switch to dark")).to_be_visible()  # it is remembered


def test_a_hundred_runs(show: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How long it takes is said, not judged."""
    for number in range(100):
        write_run(
            tmp_path / f"group-{number // 10}" / f"seed-{number % 10}",
            algorithm=("fedast-d", "fedast-s", "sync-st", "fedbuff")[number // 25],
            seed=number,
            server_lr=0.1 * (number // 10 + 1),
            evaluations=500,
            samples=500,
        )
    live = write_run(tmp_path / "live", finished=False, evaluations=500)
    page = show(tmp_path)
    expect(page.locator("table.runs tbody tr")).to_have_count(101)
    page.reload()
    expect(page.locator("table.runs tbody tr")).to_have_count(101)
    clock = "() => performance.now()"
    times = {"the list": page.evaluate(clock)}
    page.get_by_role("link", name="Compare all").click()
    began = page.evaluate(clock)
    wait_for_points(page, "Learning curves of digits", 100)
    times["101 runs compared"] = page.evaluate(clock) - began
    page.get_by_label("Group by").select_option("")
    began = page.evaluate(clock)
    expect(page.get_by_text("101 runs in 101 groups")).to_be_visible()
    times["every run a line"] = page.evaluate(clock) - began
    # Frames while the live run goes on: the longest is what a person would feel as a hitch.
    page.evaluate(
        "() => { window.frames_ = []; let last = performance.now(); const next = (now) => {"
        " frames_.push(now - last); last = now; requestAnimationFrame(next); };"
        " requestAnimationFrame(next); }"
    )
    for number in range(12):
        with (live / SERIES).open("a") as file:
            t = 101 + number
            file.write(f'["e", {t}, {t}, "digits", {t}, "raw", 0.9, 0.1]\n')
        page.wait_for_timeout(400)
    frames = page.evaluate("() => frames_")
    times["longest frame"] = max(frames)
    times["median frame"] = statistics.median(frames)
    size = sum(map(len, page_files().values())) / 1000
    with capsys.disabled():
        shown = ", ".join(f"{name} {value:.0f} ms" for name, value in times.items())
        print(f"\npage: {size:.0f} KB; 100 runs: {shown}")
