"""What cannot be compared is refused, all of it at once, with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import evaluate, make_run

Refused = Callable[..., str]


def test_everything_is_named_at_once(two_arms: Path, refused: Refused) -> None:
    make_run(two_arms, "bare", method="dapo")
    make_run(two_arms, "half", method="dgpo", right=BASE, status="interrupted")
    make_run(two_arms, "torn", method="gspo", right=BASE)
    (two_arms / "torn" / "manifest.json").write_text('{"name": ')
    said = refused(
        "grpo-s*",
        "lopti-s*",
        "lopit-s0",
        "bare",
        "half",
        "torn",
        "--metric",
        "pas@4",
        "--baseline",
        "loptii",
        "--unpaired",
    )
    for part in (
        "lopit-s0: ",
        "Did you mean `lopti-s0`?",
        f"{two_arms}/bare: ",
        f"`rlvr eval {two_arms}/bare`",
        f"{two_arms}/half: not finished",
        f"`rlvr train --resume {two_arms}/half",
        f"{two_arms}/torn/manifest.json: ",
        "--baseline loptii: ",
        "`lopti`",
        "5 problems",
    ):
        assert part in said, said
    assert "unknown metric" in refused("grpo-s*", "lopti-s*", "--metric", "rewrad")
    assert "Did you mean `reward`?" in refused("grpo-s*", "lopti-s*", "--metric", "rewrad")


def test_different_problems(root: Path, refused: Refused, compared: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    for seed in range(2):
        make_run(root, f"a-{seed}", seed=seed, right=BASE)
        make_run(root, f"b-{seed}", method="lopti", seed=seed, right=BETTER, skip=3)
    said = refused("a-*", "b-*")
    assert "9 are common" in said
    assert "3 of them" in said and "kk-" in said and "--common-problems" in said
    found = compared("a-*", "b-*", "--common-problems")
    assert found["problems"] == 9
    assert any("9 are common" in note for note in found["notes"])
    by_name = {arm["arm"]: arm for arm in found["arms"]}
    assert by_name["grpo"]["mean"]["value"] * 36 == sum(BASE[3:])
    assert by_name["lopti"]["mean"]["value"] * 36 == sum(BETTER[:9])


def test_generated_problems_are_never_compared_with_a_public_set(root: Path, refused: Refused) -> None:
    for name, method, benchmark in (("a", "grpo", "kk"), ("b", "lopti", "kk-gen")):
        run = make_run(root, name, method=method, right=BASE, benchmark=benchmark)
        for rollouts in (1, 2):
            folder = run.held_out_dir / f"rollout-{rollouts:06d}"
            evaluate(run, BASE, step=0, split="dev", folder=folder, benchmark=benchmark, rollouts=rollouts)
    assert "kk, kk-gen" in refused("a", "b")
    assert f"{root}/b: " in refused("a", "b", "--benchmark", "kk")
    assert "benchmark" in refused("a", "b", "--match", "rollouts")


def test_no_common_seed(root: Path, refused: Refused, compared: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    for seed in range(2):
        make_run(root, f"a-{seed}", seed=seed, right=BASE)
        make_run(root, f"b-{seed}", method="lopti", seed=seed + 2, right=BETTER)
    said = refused("a-*", "b-*")
    assert "grpo: seeds 0, 1; lopti: seeds 2, 3" in said and "--unpaired" in said
    found = compared("a-*", "b-*", "--unpaired")
    assert not found["paired"] and found["arms"][0]["arm"] == "lopti"


def test_one_arm_and_repeated_runs(root: Path, refused: Refused) -> None:
    make_run(root, "a", right=BASE)
    make_run(root, "again", right=BASE, overrides=["run.threads=2"])
    make_run(root, "b", method="lopti", right=BETTER)
    assert "two arms" in refused("a")
    said = refused("a", "again", "b")
    assert "seed 0 of arm grpo" in said and "run.threads" in said
    assert "`optimizer.lr`" in (said := refused("a", "b", "--by", "optimizer.lrr")) and "--by optimizer.lrr: " in said
    assert "seed" in refused("a", "b", "--by", "run.seed")


def test_damaged_records(two_arms: Path, refused: Refused) -> None:
    def evaluation(run: str) -> Path:
        return next((two_arms / run / "eval").iterdir())

    broken, other = evaluation("grpo-s0") / "problems.jsonl", evaluation("grpo-s1") / "metrics.json"
    broken.write_text('{"problem": "x"\n{}\n')
    other.write_text(other.read_text().replace('"problems": 12', '"problems": 99'))
    # As a version without hashes, or another version, would have written it.
    bare, version = evaluation("grpo-s2") / "metrics.json", evaluation("lopti-s2") / "metrics.json"
    bare.write_text(json.dumps({k: v for k, v in json.loads(bare.read_text()).items() if not k.endswith("sha256")}))
    whole = version.read_text()
    version.write_text(json.dumps({**json.loads(whole), "format": 1}))
    metrics = two_arms / "lopti-s0" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([lines[0], "{]\n", *lines[2:]]))
    (two_arms / "lopti-s1" / "timings.jsonl").write_text("")
    said = refused("grpo-s*", "lopti-s*")
    for path in (broken, other, bare):
        assert f"{path}: was altered" in said
    assert f"{version}: is of another version of rlvr" in said
    version.write_text(whole)
    restored = refused("lopti-s0", "lopti-s1", "lopti-s2", "--by", "run.name,method.name", "--unpaired")
    assert f"{metrics}:2: " in restored
    assert "timings.jsonl: has 0 lines" in restored and "has 8" in restored
