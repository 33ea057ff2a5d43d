"""Put claims of papers to the test: build, train and measure what is missing, judge, and write the page.

    python -m experiments.claims                          # every claim, seeds 0 to 4: about an hour of two cores
    python -m experiments.claims ar_lopti/lopti-order     # some claims, or a paper's
    python -m experiments.claims --seed-from 10           # a second set of seeds
    python -m experiments.claims --page                   # the page again, from the recorded results

Work is kept in --work; an interrupted run continues with the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from experiments.claims.claims import FOLDER, Claim, ClaimSet, Results, read_claims, read_results
from experiments.claims.judge import judge_claim
from experiments.claims.page import write_page
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import count
from rlvr_cli.core.yaml import dump
from rlvr_cli.runs.environment import hardware, versions
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.listing import summarize_run
from rlvr_cli.runs.seal import file_digest


def run(claims: Sequence[Claim], claim_set: ClaimSet, seed_from: int, workers: int, work: Path, data: Path) -> Results:
    """Build, train and measure what ``claims`` of the folder ``data`` lack; return them judged."""
    sides = [(str(claim.measure.analysis), arm, claim.seeds) for claim in claims for arm, _ in claim.sides()]
    seeds = range(seed_from, seed_from + max((n for _, _, n in sides), default=0))
    sweep = work / f"seeds-{seed_from}"
    if sides:
        bases = {seed: work / "bases" / f"{text_digest(claim_set.recipe)[:12]}-s{seed}" for seed in seeds}
        recipe = data / "strategy-mix.yaml"
        missing = [(recipe, seed, base) for seed, base in bases.items() if not base.exists()]
        in_processes("bases", build_base, missing, workers)
        train({arm for _, arm, _ in sides}, bases, sweep, workers, data)
    runs = {(arm, seed): RunDir(sweep / f"{arm}-s{seed}") for _, arm, n in sides for seed in seeds[:n]}
    trained = {key for key, folder in runs.items() if summarize_run(folder.path)["status"] == "finished"}
    wanted = {(analysis, arm, seed) for analysis, arm, n in sides for seed in seeds[:n] if (arm, seed) in trained}
    files = {
        (analysis, arm, seed): sweep / "measures" / f"{analysis}-{arm}-s{seed}.json"
        for analysis, arm, seed in sorted(wanted)
    }
    jobs = [(name, runs[arm, seed].path, file) for (name, arm, seed), file in files.items()]
    in_processes("measures", measure, [job for job in jobs if not is_measured(*job[1:])], workers)

    def summary(analysis: str, arm: str, seed: int) -> Mapping[str, float | None]:
        if (arm, seed) not in trained:
            raise RunError(f"its training is not finished; see `rlvr sweep status {sweep}`")
        measured = json.loads(files[analysis, arm, seed].read_text(encoding="utf-8"))
        if measured["error"] is not None:
            raise RunError(measured["error"])
        numbers: Mapping[str, float | None] = measured["summary"]
        return numbers

    outcomes = [judge_claim(claim, claim_set.fingerprint(claim), seeds[: claim.seeds], summary) for claim in claims]
    return Results(seed_from, {outcome.claim: outcome for outcome in outcomes}, workers=workers)


def train(arms: Collection[str], bases: Mapping[int, Path], sweep: Path, workers: int, data: Path) -> None:
    """Train ``arms`` of ``data``/arms.yaml with each seed, from the seed's base, by `rlvr sweep`."""
    content = yaml.safe_load((data / "arms.yaml").read_text(encoding="utf-8"))
    every = {row["name"] for row in content["list"]}
    points = [{"name": f"s{seed}", "run.seed": seed, "model.name": str(base)} for seed, base in bases.items()]
    content |= {"set": {**content["set"], "run.dir": str(sweep.parent)}, "list": [content["list"], points]}
    file = sweep.with_suffix(".yaml")
    file.write_text(dump(content), encoding="utf-8")
    for only in [["--only", f"{arm}-s[0-9]*"] for arm in sorted(arms)] if arms != every else [[]]:
        command = [sys.executable, "-m", "rlvr_cli", "sweep", str(file), "--workers", str(workers), *only]
        code = subprocess.run(command, check=False).returncode
        # 1: trainings failed, whose claims say so.
        if code not in (0, 1):
            raise SystemExit(code)


def build_base(recipe: Path, seed: int, folder: Path) -> None:
    """Build the base model of a seed; the folder appears complete or not at all.

    Each seed has a base of its own: a method's result differs between bases of one recipe by more than between seeds
    on one of them, so that an interval over seeds alone would be one about that base.
    """
    from experiments.lab import LABS
    from experiments.lab.build import build

    build(folder, lab=LABS["kk"], recipe=LABS["kk"].read_recipe(recipe), seed=seed, dev_count=0)


def is_measured(run: Path, file: Path) -> bool:
    """Return whether ``file`` has the numbers of the training as it is in ``run``."""
    if not file.exists():
        return False
    measured = json.loads(file.read_text(encoding="utf-8"))
    return bool(measured["metrics"] == file_digest(RunDir(run).metrics_path))


def measure(analysis: str, run: Path, file: Path) -> None:
    """Write the summary of ``analysis`` of the training in ``run`` to ``file``, or why there is none."""
    from rlvr_cli.analyses.base import analyses, summary_of
    from rlvr_cli.analyses.request import make_request
    from rlvr_cli.models.libraries import set_threads

    set_threads(1)
    summary, error = None, None
    try:
        request = make_request(analysis, [str(run)], run.parent)
        summary = summary_of(analyses()[analysis].measure(request.inputs, request.options))
    except (UserError, RunError) as failure:
        error = " ".join(str(failure).split("\n"))
    file.parent.mkdir(parents=True, exist_ok=True)
    metrics = file_digest(RunDir(run).metrics_path)
    write_json(file, {"metrics": metrics, "summary": summary, "error": error})


def in_processes(name: str, function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], workers: int) -> None:
    """Call ``function`` with each of ``jobs``, in processes of one thread each."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = [pool.submit(function, *job) for job in jobs]
        for number, future in enumerate(as_completed(futures), start=1):
            future.result()
            print(f"{name}: {number} of {len(jobs)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 where a claim failed, 0 whatever the verdicts are otherwise."""
    parser = argparse.ArgumentParser(prog="experiments.claims", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="CLAIM|PAPER", help="default: every claim")
    parser.add_argument("--seed-from", type=int, default=0, metavar="N", help="first seed of the set: N, N+1, ...")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: every core")
    parser.add_argument("--work", type=Path, default=Path("build/claims"), help="bases, trainings and measures")
    parser.add_argument("--data", type=Path, default=FOLDER, help="claims, arms.yaml and strategy-mix.yaml")
    parser.add_argument("--output", type=Path, help="folder of ledger.md and ledger/; default: that of --data")
    parser.add_argument("--page", action="store_true", help="only write the page, from the recorded results")
    options = parser.parse_args(arguments)
    output: Path = options.output or options.data
    failed = 0
    try:
        claim_set = read_claims(options.data)
        if not options.page:
            claims = claim_set.choose(options.names)
            work = options.work.resolve()
            work.mkdir(parents=True, exist_ok=True)
            begun = time.monotonic()
            results = run(claims, claim_set, options.seed_from, options.workers, work, options.data)
            recorded = output / "ledger" / results.file
            before = read_results(recorded) if recorded.exists() else Results(options.seed_from)
            machine = {name: hardware()[name] for name in ("processor", "cores")}
            machine |= {name: versions()[name] for name in ("rlvr", "torch", "trl")}
            (output / "ledger").mkdir(parents=True, exist_ok=True)
            replace(
                results,
                outcomes={**before.outcomes, **results.outcomes},
                seconds=before.seconds + time.monotonic() - begun,
                sessions=before.sessions + 1,
                machine=machine,
            ).write(output / "ledger")
            for result in results.outcomes.values():
                print(f"{result.claim}: {result.verdict}{f' ({result.reason})' if result.reason else ''}")
            failed = sum(result.verdict == "failed" for result in results.outcomes.values())
        sets = sorted(map(read_results, (output / "ledger").glob("seeds-*.json")), key=lambda one: one.seed_from)
        write_page(output, claim_set, sets[:2])
        print(f"written: {output / 'ledger.md'}, of {count(len(sets[:2]), 'set')} of seeds")
    except (UserError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
