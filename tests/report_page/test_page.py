"""The page of a comparison: the answer first, everything else in its order, and nothing from elsewhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.report.write import TEMPLATES
from tests.report_page.page_reader import Page


@pytest.fixture(scope="module")
def page(two_arms: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("page") / "page.html"
    assert run(["report", str(two_arms), "--output", str(path)]) == 0
    return Page(path)


def test_the_answer_is_that_of_compare(page: Page, two_arms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["compare", str(two_arms), "--format=json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    top = page.sections["answer"]
    assert top.split()[:6] == ["Is", "lopti", "better", "than", "grpo?", "lopti"]
    assert "lopti is better" in top
    for arm in compared["arms"]:
        assert (arm["sentence"] or "") in top
    subject, *basis = (line.replace("`", "") for line in compared["compared"])
    assert subject in top and all(line in page.sections["comparison"] for line in basis)
    for note in compared["notes"]:
        assert note in page.sections["notes"]


def test_nothing_from_elsewhere(page: Page) -> None:
    assert not {"iframe", "object", "embed", "img", "foreignobject"} & {tag for tag, _ in page.tags}
    addresses = [
        value or ""
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "data", "srcset")
    ]
    assert addresses
    assert all(address.startswith(("#", "data:,")) for address in addresses)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "url(" not in page.styles and "@import" not in page.styles
    assert not re.search(r"url\((?!#)", page.source)
    policy = next(attributes for _, attributes in page.tags if "http-equiv" in attributes)
    assert "default-src 'none'" in str(policy["content"])
    # One script runs, the package's own, and the policy names it alone; the others hold data.
    kinds = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert [kind for kind in kinds if kind != "text/plain"] == [None]
    script = page.scripts[-1]
    assert script == (TEMPLATES / "explorer.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy["content"])
    assert not re.search(r"\bfetch\b|XMLHttp|WebSocket|Beacon|import\(|innerHTML|outerHTML|AdjacentHTML|eval\(", script)


def test_the_script_gets_every_completion_and_every_point(page: Page, two_arms: Path) -> None:
    charts, completions = (json.loads(gzip.decompress(base64.b64decode(text))) for text in page.scripts[:2])
    assert {"reward", "accuracy", "pass-over-k"} <= set(charts)
    assert [line["name"] for line in charts["reward"][0]["lines"]] == ["grpo", "lopti"]
    wanted: Counter[tuple[str, str, str, bool]] = Counter()
    for path in two_arms.glob("*/eval/**/samples.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            wanted[path.parts[len(two_arms.parts)], row["problem"], row["answer"], row["correct"]] += 1
    sources, rows = completions["sources"], completions["rows"]
    shown = Counter(
        (sources[source]["run"], completions["problems"][problem][0], answer, bool(right))
        for source, problem, answer, right in zip(
            *(rows[name] for name in ("source", "problem", "answer", "right")), strict=True
        )
    )
    assert shown == wanted
    assert {(source["arm"], source["run"][:5]) for source in sources} == {(0, "grpo-"), (1, "lopti")}


def test_the_page_can_be_made_again(page: Page, two_arms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last command of the page gives the same bytes; nothing but the page is left."""
    command = page.commands[-1]
    path = Path(shlex.split(command)[-1])
    before, files = path.read_bytes(), sorted(path.parent.iterdir())
    path.write_text("<p>an older page</p>")
    assert run(shlex.split(command)[1:]) == 0
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == files


def test_one_run_an_arm_gets_no_verdict_on_its_method(two_arms: Path, report: Callable[..., Page]) -> None:
    page = report(two_arms / "grpo-s0", two_arms / "lopti-s0")
    top = page.sections["answer"]
    assert top.startswith("How does this run of lopti differ from this run of grpo?")
    assert "This run of lopti minus this run of grpo: +" in top and "rlvr sweep with 3 or more seeds" in top
    assert not re.search(r"better|worse|no difference|p =", top)
    pills = [own for tag, own in page.tags if tag == "span" and str(own.get("class", "")).startswith("mark")]
    assert pills == [], "no verdict as a pill"
    comparison = page.sections["comparison"]
    assert "p (Holm)" not in comparison and "p after Holm" not in comparison and ", p " not in comparison
