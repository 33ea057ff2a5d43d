"""Kinds of words against texts counted by hand, and the lists of words against what people may write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.analyses.base import AnalysisInput, summary_of
from rlvr_cli.analyses.word_lists import WordKind, compile_kind, read_lists
from rlvr_cli.analyses.words import ANALYSIS, WordsOptions, count_words, measure
from rlvr_cli.charts.figure import render_svg
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.runs.folder import RunDir, create_run

TEXT = (
    "Let's analyze Zoey's statement. If Zoey lies, then Bob\u2019s statements must be false, so Bob is a knave. We "
    "considered it SINCE she looked  at it; because of that, due\nto this. As a result he checks, checking what was "
    "checked: soon, thus. The statement of Bob is definite, not definitely. Assumed: if not. Then assume so."
)


def test_the_words_of_table_5_counted_by_hand() -> None:
    """Past forms and plurals count, -s and -ing do not; `soon` is not `so`; a gap ends with its sentence."""
    patterns = {name: compile_kind(kind) for name, kind in read_lists(None).items()}
    found = {name: len(pattern.findall(TEXT.lower())) for name, pattern in patterns.items()}
    assert found == {
        "analysis": 4,  # analyze, considered, looked at, checked
        "statement": 2,  # Zoey's statement, Bob's statements
        "causal_indicator": 3,  # since, because, due to
        "conclusion_indicator": 4,  # so, as a result, thus, so
        "assumption": 3,  # if ... then, assumed, assume
        "assertion": 2,  # must be, definite
    }


def test_the_longest_form_is_counted_once_and_patterns_are_only_text() -> None:
    pattern = compile_kind(WordKind(words=("so", "so that", "a.b", "c++")))
    assert pattern.findall("so that so a.b axb c++") == ["so that", "so", "a.b", "c++"]


def test_a_text_of_nothing_but_openings_takes_no_more_than_linear_time() -> None:
    """The gap of `if ... then` is bounded: its end is looked for in 200 characters, not in the whole text."""
    near, far = "if " + "x" * 190 + " then", "if " + "x" * 210 + " then"
    pattern = compile_kind(WordKind(words=("if...then",)))
    assert len(pattern.findall(near)) == 1 and not pattern.findall(far)
    assert not pattern.findall("if " * 20_000)


def records(texts: Sequence[str], rewards: Sequence[float | None]) -> list[dict[str, Any]]:
    return [
        {"problem": f"p{place // 2}", "completion": text, "clean_reward": reward}
        for place, (text, reward) in enumerate(zip(texts, rewards, strict=True))
    ]


def test_counts_by_completion_and_by_hundred_words() -> None:
    patterns = [compile_kind(WordKind(words=("so",)))]
    counted = count_words(records(["so so it is", "it", "so"], [1.0, 0.0, None]), patterns)
    assert counted.counts.tolist() == [[2], [0]]
    assert counted.words.tolist() == [4, 1]
    assert counted.frequencies("100 words").tolist() == [[50], [0]]
    assert counted.frequencies("completion").tolist() == [[2], [0]]
    assert counted.problems == ("p0", "p0")


def make_run(root: Path, name: str, rollouts: dict[int, list[dict[str, Any]]]) -> RunDir:
    run = create_run(root, name, overwrite=False)
    config = load_config(overrides=[f"run.dir={root}", f"run.name={name}"])
    run.config_path.write_text(dump_yaml(config), encoding="utf-8")
    run.update_manifest(name=name, status="finished")
    for number, rows in rollouts.items():
        append_jsonl(run.rollouts_dir / f"rollout-{number:06d}.jsonl", rows)
    return run


def test_words_that_are_paid_and_the_start(tmp_path: Path) -> None:
    """24 problems; `thus` is in every right completion, `assume` in every wrong one, `since` in none but the start."""
    texts = [text for _ in range(24) for text in ("thus it is", "we assume it")]
    run = make_run(
        tmp_path,
        "a",
        {0: records(["since"] * 4, [0.0] * 4), 7: records(texts, [1.0, -1.0] * 24), 8: records(["so"], [1.0])},
    )
    found = measure(AnalysisInput((run,), tmp_path, rollout=7), WordsOptions(rollouts=1))
    summary = summary_of(found)
    assert summary["conclusion_indicator_pearson"] == summary["conclusion_indicator_spearman"] == pytest.approx(1)
    assert summary["assumption_pearson"] == pytest.approx(-1)
    assert summary["causal_indicator_pearson"] is None
    assert (summary["causal_indicator_start"], summary["causal_indicator_change"]) == (1, -1)
    assert (summary["completions"], summary["words_mean"], summary["reward_mean"]) == (48, 3, 0)
    assert summary["conclusion_indicator_frequency"] == summary["conclusion_indicator_share"] == 0.5
    assert "conclusion_indicator with higher rewards" in ANALYSIS.headline(found)
    both = measure(
        AnalysisInput((run, make_run(tmp_path, "b", {3: records(texts, [0.0] * 48)})), tmp_path), WordsOptions()
    )
    assert summary_of(both) == {} and set(both["kinds"]["run"]) == {"a", "b"}
    assert both["notes"]["note"].str.contains("all rewards are the same").any()
    for frames in (found, both):
        assert "</svg>" in render_svg(ANALYSIS.plot(frames))
