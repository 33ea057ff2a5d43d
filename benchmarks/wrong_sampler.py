"""A sampler made wrong on purpose: what it costs in accuracy, and what each correction (rollout.correction) gives back.

    python -m benchmarks.wrong_sampler [--folder build/wrong-sampler] [--seeds 3] [--updates 4] [--workers 2]

GRPO on the lab of Countdown (`-c lab_stable`, 20 rollouts): sampled by the policy itself, by one whose temperature is
1.6 times the trainer's (`hot`), and by the weights of four rollouts before (`behind`, rollout.behind=4); each wrong
sampler without and with four corrections. Prints accuracies (8 samples on each of 210 problems) with 95% intervals over
seeds and problems, the verdicts of `rlvr compare` against no correction, and means over all steps of what the
correction did. A call continues what an earlier one has left.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlvr_cli.cli.app import run as rlvr_main
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.models.sampling.engine import Completions, Engine, SamplingParams

HEAT, BEHIND = 1.6, 4
# The default bounds of `geometric` are for rounding (0.1 % a token), and would reject every row of these samplers.
CORRECTIONS = {
    "none": [],
    "token": [],
    "icepop": [],
    "mis": [],
    "geometric": ["rollout.correction.low=0.9", "rollout.correction.high=1.1"],
}
SAMPLERS: dict[str, list[str]] = {"right": [], "hot": [], "behind": [f"rollout.behind={BEHIND}"]}
SETTINGS = ["-c", "lab_stable", "--task", "countdown", "run.threads=1"]
EVALUATION = ["--pass-at", "1,8", "--samples", "8", "--problems", "210"]
MEANS = ("importance/weight", "importance/rows_dropped", "mismatch/log_prob", "mismatch/kl")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A sampler with a correction and a seed."""

    sampler: str
    correction: str
    seed: int

    def run(self, folder: Path) -> Path:
        return folder / self.sampler / f"{self.correction}-s{self.seed}"

    def arguments(self, folder: Path, options: argparse.Namespace) -> list[str]:
        run = self.run(folder)
        return [
            *SETTINGS,
            *(f"train.rollouts={options.rollouts}", f"update.mini_batches={options.updates}"),
            *(f"rollout.correction={self.correction}", *CORRECTIONS[self.correction], *SAMPLERS[self.sampler]),
            *(f"run.seed={self.seed}", f"run.dir={run.parent}", f"run.name={run.name}"),
        ]


def cells(seeds: int) -> list[Cell]:
    """Every cell, the seeds last, so that an interrupted benchmark has whole tables of fewer seeds."""
    pairs = [("right", "none"), *((sampler, kind) for sampler in ("hot", "behind") for kind in CORRECTIONS)]
    return [Cell(sampler, kind, seed) for seed in range(seeds) for sampler, kind in pairs]


class Heated:
    """An engine that samples at a higher temperature than it is asked for, and returns its true log-probs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(self, model: Any, prompts: Any, params: SamplingParams, **named: Any) -> Completions:
        hot = dataclasses.replace(params, temperature=HEAT * params.temperature)
        return self.engine(model, prompts, hot, **named)


def train(arguments: list[str]) -> int:
    """`rlvr train` with a heated sampler, whose log-probs the trainer does not take for its own."""
    from rlvr_cli.training import policy_run, run

    prepare = vars(run)["prepare_run"]

    def prepare_heated(*arguments: Any, **named: Any) -> Any:
        prepared = prepare(*arguments, **named)
        assert prepared.engine is not None
        return dataclasses.replace(prepared, engine=Heated(prepared.engine))

    vars(run)["prepare_run"] = prepare_heated
    policy_run._sampler_exact = lambda *arguments, **named: False
    return rlvr_main(arguments)


def finish(cell: Cell, folder: Path, options: argparse.Namespace) -> None:
    """Train and evaluate a cell, or what is left of it."""
    run = cell.run(folder)
    manifest = run / "manifest.json"
    status = json.loads(manifest.read_text())["status"] if manifest.exists() else None
    if status != "finished":
        program = ["-m", "benchmarks.wrong_sampler", "--train"] if cell.sampler == "hot" else ["-m", "rlvr_cli"]
        begin = ["--overwrite", *cell.arguments(folder, options)] if status is None else ["--resume", str(run)]
        call([*program, "train", *begin], run)
    if not list(run.glob("eval/*/metrics.json")):
        call(["-m", "rlvr_cli", "eval", str(run), *EVALUATION], run)
    print(f"{cell.sampler} {cell.correction} seed {cell.seed}: done", file=sys.stderr, flush=True)


def call(arguments: list[str], run: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{run}: {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def table(folder: Path, sampler: str, made: list[Cell]) -> list[str]:
    """The rows of a wrong sampler, and of the right one, against no correction."""
    runs = {str(cell.run(folder)): cell for cell in made if cell.sampler in ("right", sampler)}
    baseline = next(path for path, cell in runs.items() if cell.sampler == sampler and cell.correction == "none")
    by = "run.dir,rollout.correction,rollout.behind"
    command = ["-m", "rlvr_cli", "compare", *runs, "--by", by, "--baseline", baseline, "--format", "json"]
    lines = []
    for arm in json.loads(call(command, folder))["arms"]:
        paths = [run["run"] for run in arm["runs"]]
        steps = [row for path in paths for row in read_jsonl(Path(path) / "metrics.jsonl")]
        difference = arm["difference"]
        cells = [
            f"{runs[paths[0]].sampler}, {runs[paths[0]].correction}",
            interval(arm["mean"]),
            "-" if difference is None else interval(difference, "+.3f"),
            arm["verdict"],
            *(mean([row[name] for row in steps if row.get(name) is not None]) for name in MEANS),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3g}" if values else "-"


def interval(estimate: dict[str, Any], form: str = ".3f") -> str:
    return f"{estimate['value']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/wrong-sampler"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    folder = options.folder.resolve()
    made = cells(options.seeds)
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(lambda cell: finish(cell, folder, options), made))
    print(f"{options.rollouts} rollouts x {options.updates} updates, {options.seeds} seeds\n")
    print(f"| sampler, correction | accuracy | to none | verdict | {' | '.join(MEANS)} |\n|{'---|' * (4 + len(MEANS))}")
    for sampler in ("hot", "behind"):
        print("\n".join(table(folder, sampler, made)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        sys.exit(train(sys.argv[2:]))
    main()
