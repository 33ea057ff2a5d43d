"""Sampled completions: chosen by the rule that is told, coloured as recorded, and shown as text whatever is in them."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import pytest

from rlvr_cli.core.errors import RunError
from rlvr_cli.report.write import TEMPLATES
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.completions import BINS, Piece, bin_names, sampled_completions


def record(problem: str, correct: bool, text: str = "a b", *, group: str = "easy", **more: Any) -> dict[str, Any]:
    return {
        "problem": problem,
        "subgroup": group,
        "prompt": f"prompt of {problem}",
        "completion": text,
        "tokens": len(text.split()),
        "truncated": False,
        "reward": 1.0 if correct else 0.0,
        "correct": correct,
        "reason": "correct" if correct else "wrong",
        "answer": "7",
        "advantage": 0.5,
        **more,
    }


def coloured(problem: str, correct: bool, pieces: dict[str, float], **more: Any) -> dict[str, Any]:
    logs = {"pieces": list(pieces), "log_probs": [math.log(p) for p in pieces.values()]}
    return record(problem, correct, "".join(pieces), **logs, **more)


def made(root: Path, *rollouts: list[dict[str, Any]]) -> RunDir:
    run = RunDir(root / "run")
    run.rollouts_dir.mkdir(parents=True)
    for number, rows in enumerate(rollouts):
        path = run.rollouts_dir / f"rollout-{number:06d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return run


def page(run: RunDir) -> str:
    folder = TEMPLATES
    loader = jinja2.FileSystemLoader(folder)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    template: Any = environment.get_template("completions.html").module
    return str(template.completions(sampled_completions(run), bin_names()))


def test_a_problem_of_both_rollouts_is_shown_before_and_after(tmp_path: Path) -> None:
    first = [record("p", True), record("p", False, "x"), record("q", False), record("q", True)]
    between = [record("q", True), record("q", False)]
    last = [record("r", True), record("q", True, "late"), record("q", True, "later"), record("q", False, "no")]
    found = sampled_completions(made(tmp_path, first, between, last))
    ((before, after),) = found.pairs
    assert (before.when, before.rollout, after.when, after.rollout) == ("first rollout", 1, "last rollout", 3)
    assert (before.problem, after.problem) == ("q", "q")
    # The first right one and the first wrong one, with their places in the rollout.
    assert [(one.number, one.text) for one in after.completions] == [(2, "late"), (4, "no")]
    assert (after.right, after.completions_of_problem) == (2, 3)
    assert "Problems that both rollouts have." in found.how
    assert not found.coloured and "no colours" in found.how


def test_tokens_have_the_probability_they_were_sampled_with(tmp_path: Path) -> None:
    probabilities = {"one": 1.0, " two": 0.7, " three": 0.3, " four": 0.05, " five": 1e-6}
    found = sampled_completions(made(tmp_path, [coloured("p", True, probabilities)]))
    pieces = found.pairs[0][0].completions[0].pieces
    assert [piece.text for piece in pieces] == list(probabilities)
    assert [piece.probability for piece in pieces] == pytest.approx(list(probabilities.values()))
    assert [piece.bin for piece in pieces] == [4, 3, 2, 1, 0]
    assert [piece.title for piece in pieces][3:] == ["probability 0.050", "probability 1e-06"]
    assert [Piece("", low).bin for low in BINS] == [0, 1, 2, 3, 4]
    assert bin_names() == ["below 0.01", "0.01 to 0.1", "0.1 to 0.5", "0.5 to 0.9", "0.9 to 1"]
    shown = page(RunDir(tmp_path / "run"))
    assert '<span class="p p1" title="probability 0.050"> four</span>' in shown
    assert all(f'<span class="p p{place}">{name}</span>' in shown for place, name in enumerate(bin_names()))


def test_a_completion_with_a_probability_that_is_not_finite_is_shown_without_any(tmp_path: Path) -> None:
    row = record("p", True, "a b", pieces=["a", " b"], log_probs=[None, -1.0])
    [completion] = sampled_completions(made(tmp_path, [row])).pairs[0][0].completions
    assert (completion.pieces, completion.text) == ((), "a b")


def test_what_a_model_wrote_is_text(tmp_path: Path) -> None:
    hostile = "</pre><script>alert(1)</script>\x1b[2J\u202e{{ 7 * 7 }}\ud800"
    rows = [
        coloured("<b>p</b>", True, {hostile: 0.5}, group="<i>", answer=hostile, reason="<u>", prompt=hostile),
        record("<b>p</b>", False, hostile, group="<i>", answer=None, reward=None, advantage=None),
    ]
    shown = page(made(tmp_path, rows))
    tags: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.add(tag)

    Tags().feed(shown)
    assert tags <= {"div", "p", "section", "h4", "details", "summary", "pre", "span", "b", "bdi"}
    assert "&lt;script&gt;" in shown and "{{ 7 * 7 }}" in shown and "no answer" in shown
    assert not re.search("[\x1b\u202e\ud800]", shown)
    assert "\\x1b[2J\\u202e" in shown and "\\ud800" in shown
    shown.encode()


def test_a_long_completion_is_cut_in_its_middle_and_says_so(tmp_path: Path) -> None:
    pieces = {f" {place}": 0.9 for place in range(1000)}
    rows = [coloured("p", True, pieces), record("p", False, "x" * 10_000)]
    right, wrong = sampled_completions(made(tmp_path, rows)).pairs[0][0].completions
    assert len(right.pieces) == 401 and right.pieces[300].text == " … 600 tokens left out … "
    assert right.pieces[-1].text == " 999"
    assert len(wrong.text) < 4100


def test_a_run_without_completions_and_one_with_damaged_ones(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert sampled_completions(run).pairs == ()
    assert "no completions on disk" in page(run)
    (run.rollouts_dir / "rollout-000000.jsonl").write_text('{"tokens": true}\n')
    with pytest.raises(RunError, match=r"rollout-000000\.jsonl: a line lacks 'problem'"):
        sampled_completions(run)
