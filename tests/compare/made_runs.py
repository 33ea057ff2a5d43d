"""Run directories with known numbers, written by the project's own writers; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.compare.results import Contrast, compare_task
from rlvr_cli.compare.scores import RunScores, TaskScores
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.sample_store import Sampler, SampleStore, sample_record
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.runs.folder import RunDir, create_run
from rlvr_cli.stats.intervals import UNBOUNDED
from rlvr_cli.store.arm import Replicate
from rlvr_cli.store.evaluation import Provenance
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.store.training import COSTS
from rlvr_cli.tasks import Problem, Task, Verdict

SAMPLES = 4
POOL = 24
ROLLOUTS = 4


def contrasts(
    tables: Mapping[str, np.ndarray], *, metric: str = "avg@4", target: float | None = None
) -> dict[str, Contrast]:
    """Every other arm of these tables [seeds, problems] against the first, as `rlvr compare` has them."""
    spent = dict.fromkeys(COSTS, 1.0)
    arms = {
        name: {Replicate(seed): RunScores(cast(Any, None), row, spent) for seed, row in enumerate(table)}
        for name, table in tables.items()
    }
    scores = TaskScores(
        request=CompareRequest((), Path(), power=target),
        arms=arms,
        baseline=next(iter(arms)),
        by_path={},
        metric=metric,
        samples=4,
        problems=tuple(map(str, range(len(next(iter(tables.values()))[0])))),
        settings={},
        bounds=UNBOUNDED,
        notes=(),
    )
    return {row.arm: contrast for row, contrast in compare_task(scores).others}


class MadeSampler(Sampler):
    """The first ``right[i]`` samples of problem i are right; every response to it has ``tokens[i]`` tokens."""

    def __init__(self, weights: str, right: Sequence[int], tokens: Sequence[int]) -> None:
        self.weights, self.right, self.tokens = weights, right, tokens

    def fill(self, store: SampleStore, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        records = []
        for problem, right, tokens in zip(problems, self.right, self.tokens, strict=True):
            for index in (*range(settings.samples), GREEDY):
                is_right = right > (0 if index == GREEDY else int(index))
                # Every wrong answer is another one, so that a majority is won by two right ones.
                verdict = Verdict(
                    reward=3.0 if is_right else -1.0,
                    parts={"format": 1.0, "answer": 2.0 if is_right else -2.0},
                    correct=is_right,
                    answer="gold" if is_right else f"wrong {index}",
                    reason="correct" if is_right else "wrong",
                )
                record = sample_record(
                    problem,
                    index,
                    prompt="p",
                    text="t",
                    tokens=tokens,
                    log_prob=-1.0,
                    truncated=False,
                    verdict=verdict,
                )
                records.append(record)
        store.add(records)


@cache
def _problems(split: str) -> tuple[Task, tuple[Problem, ...]]:
    config = load_config()
    task = config.task.for_model("compact")
    return task, tuple(task.problems(split, POOL, 0))  # type: ignore[arg-type]


def make_run(
    root: Path,
    name: str,
    *,
    method: str = "grpo",
    seed: int = 0,
    overrides: Sequence[str] = (),
    right: Sequence[int] | None = None,
    held_out: Mapping[int, Sequence[int]] | None = None,
    seconds: float = 2.0,
    status: str = "finished",
    **evaluation: Any,
) -> RunDir:
    """A run of ``method`` that was trained for 4 rollouts, `mini_batches` (and passes) updates each.

    Args:
        right: right samples of each problem in the final evaluation; None = it was not evaluated.
        held_out: the same of the evaluations after so many rollouts.
        seconds: of each update; a rollout takes 1 s more.
        evaluation: passed to :func:`evaluate`.
    """
    run = create_run(root, name, overwrite=False)
    settings = [f"run.seed={seed}", f"run.dir={root}", f"run.name={name}", f"train.rollouts={ROLLOUTS}"]
    config = load_config(method=method, overrides=[*settings, "validation.every=1", *overrides])
    run.config_path.write_text(dump_yaml(config), encoding="utf-8")
    steps = config.batch.steps_per_rollout
    done = config.train.rollouts * steps
    run.update_manifest(
        name=name,
        status=status,
        created="2026-01-01T00:00:00+00:00",
        method=str(config.method.name),
        task="kk-gen",
        model="lab",
        seed=seed,
        step=done,
        rollout=config.train.rollouts,
        steps_total=done,
        rollouts_total=config.train.rollouts,
        threads=1,
        hardware={"processor": "made"},
        method_fingerprint={"code_sha256": "0"},
    )
    rows, timings = [], []
    for step in range(1, done + 1):
        rollout, update = divmod(step - 1, steps)
        row = {"step": step, "rollout": rollout, "update": update, "length": 10.0, "update_tokens": 640.0}
        rows.append(row)
        whole = {"seconds": seconds + (update == 0), "seconds/rollout": float(update == 0), "seconds/update": seconds}
        timings.append({"step": step, **whole, "tokens_per_second": 1.0})
    append_jsonl(run.metrics_path, rows)
    append_jsonl(run.timings_path, timings)
    if right is not None:
        evaluate(run, right, step=done, **evaluation)
    for rollouts, counts in (held_out or {}).items():
        folder = run.held_out_dir / f"rollout-{rollouts:06d}"
        evaluate(run, counts, step=rollouts * steps, split="dev", folder=folder, rollouts=rollouts)
    return run


def evaluate(
    run: RunDir,
    right: Sequence[int],
    *,
    step: int,
    split: str = "test",
    samples: int = SAMPLES,
    temperature: float = 1.0,
    tokens: int | Sequence[int] = 10,
    skip: int = 0,
    folder: Path | None = None,
    benchmark: str = "kk-gen",
    rollouts: int | None = None,
) -> Path:
    """Evaluate on ``len(right)`` problems, from the one after ``skip`` on; returns the folder."""
    task, problems = _problems(split)
    settings = EvalSettings(
        problems=len(right),
        samples=samples,
        pass_at=(1, samples) if samples else (),
        temperature=temperature,
        max_new_tokens=24,
        split=split,
    )
    folder = folder or run.eval_dir / f"{benchmark}-{split}-step-{step}-{samples}-{temperature:g}"
    sampler = MadeSampler(
        f"{run.name} {step} {folder.name}", right, [tokens] * len(right) if isinstance(tokens, int) else tokens
    )
    evaluate_with(
        sampler,
        task,
        problems[skip : skip + len(right)],
        settings,
        folder,
        provenance=Provenance(f"{run.name} step {step}", "lab", benchmark, (step,), rollouts),
    )
    return folder
