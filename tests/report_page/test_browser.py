"""The page in a real browser, by keyboard and by pointer: nothing is fetched, nothing complains, text stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.store.evaluation import sample_check

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright", reason="the browser's tests need playwright: pip install -e .[browser]")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser's tests need chromium on the PATH")

HOSTILE = '</script><script>document.title="x"</script><img src=http://x.invalid/ onerror=document.title="x"> NEEDLE'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(two_arms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two arms; one sample of lopti is hostile."""
    folder = tmp_path_factory.mktemp("browser")
    runs = folder / "runs"
    shutil.copytree(two_arms, runs)
    (path,) = (runs / "lopti-s0" / "eval").glob("kk-gen-test*/samples.jsonl")
    rows = read_jsonl(path)
    for row in rows:
        row.pop("check", None)
    rows[0] |= {"text": HOSTILE, "answer": HOSTILE}
    next(row for row in rows if not row["correct"])["reason"] = "too_long"
    path.write_text("".join(json.dumps({**row, "check": sample_check(row)}) + "\n" for row in rows))
    for place, path in enumerate(sorted(runs.glob("*/metrics.jsonl"))):
        lines = [{**line, "reward": 0.3 * line["rollout"] - 0.11 * place} for line in read_jsonl(path)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(["report", str(runs), "--output", str(folder / "page.html")]) == 0
    return folder / "page.html"


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Page]:
    """The page opened; at the end nothing was fetched and nothing was said on the console."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page, heard = context.new_page(), list[str]()
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url))
    page.goto(f"file://{written}")
    page.wait_for_selector("html[data-ready]", timeout=20_000)
    yield page
    title = page.title()
    context.close()
    assert heard == [f"file://{written}"]
    assert title != "x"


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is there, as one does without a pointer."""
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def shown(page: Page, selector: str) -> int:
    return page.locator(selector).filter(visible=True).count()


def total(page: Page) -> int:
    found = re.match(r"[\d,]+", page.locator("#browse-count").inner_text())
    assert found
    return int(found[0].replace(",", ""))


def test_an_arm_is_switched_off_and_on_by_keyboard(page: Page) -> None:
    everything, lines = total(page), shown(page, "#figure-reward [data-arm='1']")
    assert lines and shown(page, "details[data-arm='1']") == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    tab_to(page, "#arms input[value='1']")
    page.keyboard.press("Space")
    # Its lines, its rows and columns of tables, its row among the differences, its completions.
    assert shown(page, "[data-arm='1']") == 0
    cells = page.locator("main th, main td, main svg text").filter(visible=True).all_text_contents()
    assert not [cell for cell in cells if cell.split()[:1] == ["lopti"]]
    assert [cell for cell in cells if cell.split()[:1] == ["grpo"]]
    assert shown(page, "#figure-reward [data-arm='0']") > 0
    assert total(page) == everything / 2
    assert "1 of 2" in page.locator("#arms-shown").inner_text()
    # On paper there are all.
    page.emulate_media(media="print")
    assert shown(page, "#figure-reward [data-arm='1']") == lines
    page.emulate_media(media="screen")
    page.locator("#arms input[value='1']").press("Space")
    assert (total(page), shown(page, "#figure-reward [data-arm='1']")) == (everything, lines)
    page.get_by_role("button", name="none").click()
    assert total(page) == 0 and shown(page, "svg [data-arm]") == 0


def test_the_pointer_reads_what_the_runs_recorded(page: Page, written: Path) -> None:
    """Of every rollout the mean over an arm's runs of metrics.jsonl, and each run."""
    expected: dict[str, list[str]] = {}
    for arm in ("grpo", "lopti"):
        runs = [read_jsonl(path) for path in sorted((written.parent / "runs").glob(f"{arm}-s*/metrics.jsonl"))]
        for rollout in range(4):
            own = [next(line["reward"] for line in lines if line["rollout"] == rollout) for lines in runs]
            each = ", ".join(f"{value:.4g}" for value in own)
            expected.setdefault(f"{rollout + 1} rollouts", []).append(f"{arm}: {fmean(own):.4g} (runs: {each})")
    plot = page.locator("#figure-reward .plot")
    plot.scroll_into_view_if_needed()
    box, seen = plot.bounding_box(), {}
    assert box is not None
    for step in range(1, 40):
        page.mouse.move(box["x"] + box["width"] * step / 40, box["y"] + box["height"] / 2)
        seen[plot.locator(".tip b").inner_text()] = plot.locator(".tip span").all_inner_texts()
    assert seen == expected


def test_completions_are_searched_and_filtered_by_keyboard(page: Page, written: Path) -> None:
    rows = [row for path in (written.parent / "runs").glob("*/eval/**/samples.jsonl") for row in read_jsonl(path)]
    assert total(page) == len(rows)
    tab_to(page, "#browse input")
    page.keyboard.type("wrong 3")
    page.wait_for_timeout(400)
    matching = [row for row in rows if row["answer"] == "wrong 3"]
    assert total(page) == len(matching)
    assert page.locator("#results mark").first.inner_text() == "wrong 3"
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    chosen = {
        "verdict": ("wrong", lambda row: not row["correct"]),
        "subgroup": ("3 people", lambda row: "-3ppl-" in row["problem"]),
    }
    left = rows
    for name, (option, keeps) in chosen.items():
        tab_to(page, f"#browse select[name={name}]")
        page.keyboard.type(option)
        page.wait_for_timeout(400)
        left = [row for row in left if keeps(row)]
        assert 0 < total(page) == len(left)
    # Those of every reason, one of which has an option of its own.
    assert "wrong: too_long (1)" in page.locator("#browse select[name=verdict] option").all_inner_texts()
    page.locator("#browse select[name=arm]").select_option("lopti")
    page.locator("#browse select[name=evaluation]").select_option(index=1)
    page.wait_for_timeout(400)
    assert 0 < total(page) < len(left)
    tab_to(page, "#browse button[type=reset]")
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert total(page) == len(rows)
    assert page.locator("#results li").count() == 10
    page.locator("#browse-more").click()
    assert page.locator("#results li").count() == 20
    page.locator("#results button").first.click()
    problem = page.locator("#browse input").input_value()
    assert total(page) == sum(row["problem"] == problem for row in rows)


def test_what_a_model_wrote_stays_text(page: Page) -> None:
    page.locator("#browse input").fill("needle")
    page.wait_for_timeout(400)
    assert total(page) == 1
    assert page.locator("#results pre").inner_text() == HOSTILE
    assert page.locator("#results img, #results script").count() == 0
