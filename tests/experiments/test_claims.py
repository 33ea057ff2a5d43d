"""The shipped claims and their page, what is wrong with others, and a small set from nothing to a page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.claims.claims import FOLDER, PAPERS, ClaimResult, read_claims, read_results
from experiments.claims.judge import EXACT, SAME, judge, judge_claim
from experiments.claims.page import write_page
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.spec import read_sweep
from tests.commands import ROOT
from tests.experiments.claim_files import ARMS, CONTRAST, LENGTH, NO_NUMBER, claim_set
from tests.recipes import recipes

SETS = [read_results(FOLDER / "ledger" / f"seeds-{seed}.json") for seed in (0, 10)]


def test_the_page_is_that_of_the_recorded_results(tmp_path: Path) -> None:
    write_page(tmp_path, read_claims(), SETS)
    for name in ("ledger.md", "ledger/overview.svg"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_the_recorded_verdicts_are_those_of_the_recorded_numbers() -> None:
    read = read_claims()
    for results in SETS:
        assert set(results.outcomes) == set(read.claims)
        for claim in read.claims.values():
            result = results.current(claim, read)
            assert result is not None
            if claim.measure.exact is not None:
                assert result.values == [EXACT[claim.measure.exact](**claim.measure.options)]
            elif result.reason is None:
                judged = judge(result.values, claim.rule)
                about = (judged.verdict, judged.mean, judged.low, judged.high, judged.needed)
                assert about == (result.verdict, result.mean, result.low, result.high, result.needed)


def test_the_shipped_claims_are_of_all_papers_and_name_recipes_that_exist() -> None:
    claims = read_claims().claims.values()
    assert {claim.paper for claim in claims} == set(PAPERS)
    rows = {f"{table}.yaml:{row}" for table, _, row in (name.rpartition("/") for name in recipes())}
    named = {file for claim in claims if claim.full for file in (claim.full.of, claim.full.against) if file}
    assert named and named <= rows


def test_the_shipped_arms_are_a_sweep_whose_methods_share_their_schedule() -> None:
    """Methods differ, not the learning rate: no method's rate was chosen for it."""
    trials = expand(read_sweep(FOLDER / "arms.yaml")).trials
    assert {trial.name for trial in trials} == {
        arm for claim in read_claims().claims.values() for arm, _ in claim.sides()
    }
    schedules: dict[tuple[bool, int], set[str]] = {}
    for trial in trials:
        config = trial.config
        # A checkpoint after each rollout: the policy that sampled the last rollout is kept.
        assert config.batch.steps_per_rollout == config.checkpoint.every and config.checkpoint.keep >= 2, trial.name
        regime = (trial.name.endswith("-collapse"), config.update.mini_batches)
        schedules.setdefault(regime, set()).add(repr((config.train.rollouts, config.rollout, config.optimizer)))
    assert [len(found) for found in schedules.values()] == [1] * 5


def test_what_is_wrong_with_a_claim_is_said_of_all_at_once(tmp_path: Path) -> None:
    wrong = (
        {**LENGTH, "rule": {"above": 0, "below": 1}},
        {**LENGTH, "id": "landscape/b", "arm": "tiny-grpp"},
        {**LENGTH, "id": "landscape/c", "sedes": 3},
        {**LENGTH, "id": "landscape/d", "contrast": {"of": "tiny-pl", "against": "tiny-grpo"}},
    )
    with pytest.raises(UserError) as caught:
        claim_set(tmp_path, *wrong)
    problems = str(caught.value)
    for text in (
        "landscape/length: ",
        "exactly one of above",
        "Did you mean `tiny-grpo`?",
        "sedes",
        "exactly one of arm",
    ):
        assert text in problems
    with pytest.raises(UserError, match="Did you mean `landscape/length`"):
        claim_set(tmp_path, LENGTH).choose(["landscape/lenght"])


def test_a_claim_is_changed_by_its_numbers_and_arms_and_not_by_its_words(tmp_path: Path) -> None:
    def fingerprint(*changes: dict[str, Any], arms: Any = ARMS) -> str:
        read = claim_set(tmp_path, {**LENGTH, **(changes[0] if changes else {})}, arms=arms)
        return read.fingerprint(read.claims["landscape/length"])

    first = fingerprint()
    assert fingerprint({"statement": "Other words.", "note": "More."}) == first
    assert fingerprint(arms={**ARMS, "list": [ARMS["list"][0], {"name": "tiny-pl", "method": "nl"}]}) == first
    assert fingerprint({"rule": {"above": 0.1}}) != first
    assert fingerprint({"seeds": 3}) != first
    assert fingerprint(arms={**ARMS, "list": [{"name": "tiny-grpo", "method": "nl"}]}) != first


def test_a_contrast_is_seed_by_seed_and_what_fails_is_said(tmp_path: Path) -> None:
    of_length = {**CONTRAST, "measure": LENGTH["measure"], "rule": {"within": [1, 1]}}
    read = claim_set(tmp_path, LENGTH, of_length, NO_NUMBER)
    lengths: dict[tuple[str, int], float | None] = {}
    lengths |= {("tiny-pl", 0): 4.0, ("tiny-pl", 1): 6.0, ("tiny-grpo", 0): 2.0, ("tiny-grpo", 1): 3.0}

    def outcome(name: str, seeds: tuple[int, ...] = (0, 1), **changes: Any) -> ClaimResult:
        def summary(analysis: str, arm: str, seed: int) -> dict[str, float | None]:
            if seed == 2:
                raise RunError("its training failed: no memory")
            return {"length_end": lengths[arm, seed]}

        return judge_claim(read.claims[name].model_copy(update=changes), "", seeds, summary)

    ratio = outcome("landscape/updates")
    assert (ratio.values, ratio.sides, ratio.verdict) == ([2.0, 2.0], [[4.0, 2.0], [6.0, 3.0]], "does not hold")
    assert outcome("landscape/length").values == [2.0, 3.0] and outcome("landscape/length").sides == []
    failed = outcome("landscape/length", (0, 2))
    assert (failed.verdict, failed.reason) == ("failed", "landscape of tiny-grpo-s2: its training failed: no memory")
    assert "no number lenght_end. Did you mean `length_end`?" in str(outcome("landscape/no-number").reason)
    # A difference of exactly 0 in every seed comes from a term that never acted: no evidence against it.
    lengths |= {("tiny-grpo", 0): 4.0, ("tiny-grpo", 1): 6.0}
    above = read.claims["landscape/length"].rule
    assert outcome("landscape/updates", rule=above).reason == SAME
    lengths["tiny-grpo", 1] = None
    missing = outcome("landscape/updates")
    assert (missing.verdict, missing.reason) == ("undecided", "tiny-grpo-s1: length_end has no value (null)")


def test_a_method_that_does_the_reverse_is_noticed(tmp_path: Path) -> None:
    """In a copy of the package, with Lopti's passes swapped, the claim about their order no longer holds."""
    for name in ("rlvr_cli", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    name, method = "ar_lopti/low-probability-first", tmp_path / "rlvr_cli/methods/lopti.py"
    command = [sys.executable, "-m", "experiments.claims", name, "--output", str(tmp_path / "page")]

    def verdict() -> str:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return read_results(tmp_path / "page/ledger/seeds-0.json").outcomes[name].verdict

    assert verdict() == "holds"
    right, wrong = '"low_first": ("low", "high")', '"low_first": ("high", "low")'
    assert method.read_text().count(right) == 1
    method.write_text(method.read_text().replace(right, wrong))
    assert verdict() == "does not hold"
