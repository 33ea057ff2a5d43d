"""`rlvr eval`: sample a run, a checkpoint or a model on held-out problems and report pass@k, avg@n and maj@k."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.command import DATA_PANEL, MORE, key_option, key_options
from rlvr_cli.cli.options import (
    DATA,
    DATA_DIR,
    REWARD,
    TrustRemoteCode,
    complete_run,
    config_sources,
    output,
)
from rlvr_cli.cli.output import Format, echo, print_json, print_table, print_waiting

if TYPE_CHECKING:
    from rlvr_cli.evaluation.estimates import PairedComparison
    from rlvr_cli.store.evaluation import Evaluation


@key_options(
    key_option("task.name", "--task", metavar="NAME", help="Problems of this task, or of a file: `my_task.py`."),
    key_option("eval.pass_at", "--pass-at", metavar="K,...", several=True),
    key_option("eval.samples", "--samples", "-n"),
    key_option(
        "eval.problems",
        "--problems",
        help="Number of held-out problems; for a benchmark the default is all.",
        panel=DATA_PANEL,
    ),
    DATA,
    REWARD,
    DATA_DIR,
    key_option("eval.temperature", "--temperature", panel=MORE),
    key_option("eval.top_p", "--top-p", panel=MORE),
    key_option("eval.max_new_tokens", "--max-new-tokens", panel=MORE),
    key_option("eval.engine", "--engine", panel=MORE),
    key_option("eval.base_url", "--base-url", metavar="URL", panel=MORE),
    key_option("eval.model_name", "--model-name", metavar="NAME", panel=MORE),
    into="arguments",
)
def command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL KEY=VALUE",
            autocompletion=complete_run,
            help="A run's name or path, a checkpoint's path, a model folder, a hub id, `lab`, or `base:RUN` (the model "
            "before the run's training). Default: the newest run, or the model of --config. Overrides may follow.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            rich_help_panel=MORE,
            help="YAML configuration on top of the run's, as for `rlvr train`.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="NAME",
            rich_help_panel=DATA_PANEL,
            help="dev, test, or all. Default: eval.split; all for a file in --data that the run did not train on.",
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmark",
            metavar="NAME,...",
            help="Benchmarks or suites to evaluate on, as `gsm8k,math500` or `dgpo`, with the papers' settings. "
            "`rlvr tasks benchmarks` lists them. Default: the run's task.",
        ),
    ] = None,
    average_last: Annotated[
        int,
        typer.Option(
            "--average-last", metavar="N", rich_help_panel=MORE, help="Evaluate a run's last N checkpoints and average."
        ),
    ] = 1,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="base|RUN|MODEL",
            help="Evaluate this run or model too and show before, after, difference; `base` = the run's model before "
            "training.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", rich_help_panel=MORE, help="Seed of the samples.")] = 0,
    out: Annotated[Path | None, output("DIR", "Folder of the evaluation. Default: in eval/ of the run.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Evaluate on held-out problems: pass@k, avg@n, maj@k, greedy accuracy, each with a 95% interval.

    Keeps every sample: an interrupted evaluation continues where it stopped, and a larger --samples or --problems
    samples only what is missing.
    """
    from rlvr_cli.evaluation.jobs import EvalRequest, make_jobs
    from rlvr_cli.models.libraries import allow_remote_code

    allow_remote_code(trust_remote_code)
    jobs, job_tables = make_jobs(
        tuple(benchmark or ()),
        EvalRequest(
            arguments=tuple(arguments or ()),
            config=tuple(config_sources(config)),
            split=split,
            average_last=average_last,
            against=against,
            seed=seed,
            out=out,
        ),
    )
    if jobs[0].config.eval.engine != "openai":
        print_waiting()
    from rlvr_cli.evaluation.overview import build_overview, write_overview
    from rlvr_cli.evaluation.problems import with_problems
    from rlvr_cli.evaluation.progress import progress_view
    from rlvr_cli.evaluation.run import run_jobs

    outcomes, results = [], []
    with progress_view("samples") as view:
        for outcome, comparison in run_jobs(with_problems(jobs, view.say), view):
            if form != "json":
                _print_evaluation(outcome, comparison)
            outcomes.append(outcome)
            result = {"folder": str(outcome.folder), **outcome.result}
            results.append({**result, "against": comparison.as_json()} if comparison else result)
    tables = []
    for table in job_tables:
        content = build_overview(table, jobs, outcomes)
        if table.suite is not None:
            content["file"] = str(write_overview(table.suite.name, table.rows, jobs, outcomes, content))
        tables.append(content)
    if form == "json":
        print_json({"evaluations": results, "tables": tables} if tables else results[0])
        return
    for content in tables:
        _print_overview(content)


def _print_overview(content: dict[str, Any]) -> None:
    from rlvr_cli.evaluation.overview import format_averages, overview_table

    name = f"suite {content['suite']}, {content['paper']}" if content["suite"] else "benchmarks"
    echo(f"\n{content['label']}: {name} [95% intervals]")
    header, rows = overview_table(content)
    print_table(header, rows)
    if content["suite"]:
        echo("* = the paper's figure")
    for line in [*format_averages(content), *(f"- {note}" for note in content["notes"])]:
        echo(line)
    if "file" in content:
        echo(f"suite: {content['file']}")


def _print_evaluation(outcome: Evaluation, comparison: PairedComparison | None) -> None:
    from rlvr_cli.evaluation.tables import accuracy_table, comparison_table, evaluation_headline

    echo(evaluation_headline(outcome.result))
    header, rows = accuracy_table(outcome.result)
    if comparison is not None:
        header, rows = comparison_table(comparison, outcome.result["label"])
    print_table(header, rows)
    if comparison is not None and comparison.note is not None:
        echo(comparison.note)
    echo(f"samples and metrics: {outcome.folder}")
