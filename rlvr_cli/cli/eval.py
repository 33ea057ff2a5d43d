"""`rlvr eval`: sample a run, a checkpoint or a model on held-out problems and report pass@k and its kin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.options import MaxNewTokens, Reward, Samples, Temperature, TopP, TrustRemoteCode, output
from rlvr_cli.cli.output import Format, echo, plain_table, print_json, print_table

if TYPE_CHECKING:
    from rlvr_cli.evaluation.session import EvaluationResult, PairedComparison


def command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|CHECKPOINT|MODEL] [SECTION.KEY=VALUE]...",
            help="A run's name or path, a checkpoint's path, a model folder, a hub id or `lab`; nothing = the newest "
            "run. Overrides of the configuration may follow.",
            show_default=False,
        ),
    ] = None,
    pass_at: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-at", metavar="K[,K...]", help="Every k of pass@k. Default: eval.pass_at, as far as the samples go."
        ),
    ] = None,
    samples: Samples = None,
    problems: Annotated[
        int | None,
        typer.Option(
            "--problems",
            metavar="N",
            help="Held-out problems. Default: eval.problems; all of a benchmark's.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="NAME", help="dev, test, or all (of --data). Default: eval.split."),
    ] = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_new_tokens: MaxNewTokens = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmark",
            metavar="NAME[,NAME...]",
            help="Benchmarks or suites to evaluate on, as `gsm8k,math500` or `dgpo`, with the papers' settings. "
            "Default: the run's task.",
        ),
    ] = None,
    list_benchmarks: Annotated[
        bool, typer.Option("--list-benchmarks", help="List benchmarks and suites, their settings and sources.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Problems from a folder, a .jsonl file or a hub id (task.data)."),
    ] = None,
    reward: Reward = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="FOLDER",
            help="Folder with the benchmarks' data. Default: RLVR_DATA_DIR, else the hub.",
        ),
    ] = None,
    average_last: Annotated[
        int, typer.Option("--average-last", metavar="N", help="Evaluate a run's last N checkpoints and average.")
    ] = 1,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="OTHER", help="Evaluate this run or model too and show before, after, difference."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="What samples: auto, local, transformers, vllm, or openai (a server). Default: eval.engine.",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="The server's address, as http://localhost:8000/v1."),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option("--model-name", metavar="NAME", help="The model's name there. Default: the only one served."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Requests in flight. Default: eval.concurrency."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the samples.")] = 0,
    out: Annotated[
        Path | None,
        output("FOLDER", "Where the evaluation is kept. Default: eval/ of the run."),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Evaluate on held-out problems: pass@k, avg@n, maj@k, greedy accuracy, each with a 95% interval.

    Samples once and keeps every sample, so an interrupted evaluation continues where it stopped, and a larger
    --samples or --problems adds only what is missing.
    """
    if list_benchmarks:
        _list_benchmarks(json=form == "json")
        return
    from rlvr_cli.evaluation.request import Options, plan_evaluations
    from rlvr_cli.models.libraries import allow_remote_code

    allow_remote_code(trust_remote_code)
    plan = plan_evaluations(
        tuple(benchmark or ()),
        Options(
            arguments=tuple(arguments or ()),
            pass_at=tuple(pass_at or ()),
            samples=samples,
            problems=problems,
            split=split,
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            data=data,
            reward=tuple(reward) if reward else None,
            data_dir=data_dir,
            average_last=average_last,
            against=against,
            seed=seed,
            out=out,
            engine=engine,
            base_url=base_url,
            model_name=model_name,
            concurrency=concurrency,
        ),
    )
    from rlvr_cli.evaluation.overview import overview, suite_folder, write_overview
    from rlvr_cli.evaluation.progress import progress_view
    from rlvr_cli.evaluation.session import make_sessions, run_sessions

    outcomes, shown = [], []
    with progress_view("samples") as told:
        # Made before the first is run: bad data must show before anything is sampled.
        sessions = make_sessions(plan.requests, watch=told.watch, say=told.say)
        for outcome, comparison in run_sessions(sessions):
            if form != "json":
                _show(outcome, comparison)
            outcomes.append(outcome)
            result = {"folder": str(outcome.folder), **outcome.result}
            shown.append({**result, "against": comparison.as_json()} if comparison else result)
    tables = []
    for table in plan.tables:
        content = overview(table, plan.requests, outcomes)
        path = None
        if table.suite is not None:
            path = write_overview(suite_folder(table, plan, outcomes), content)
            content["file"] = str(path)
        tables.append(content)
        if form != "json":
            _show_overview(content, path)
    if form == "json":
        print_json({"evaluations": shown, "tables": tables} if plan.tables else shown[0])


def _show_overview(content: dict[str, Any], path: Path | None) -> None:
    from rlvr_cli.evaluation.overview import average_lines, overview_table

    name = f"suite {content['suite']}, {content['paper']}" if content["suite"] else "benchmarks"
    echo(f"\n{content['label']}: {name} [95% intervals]")
    header, rows = overview_table(content)
    table = plain_table(*header)
    for row in rows:
        table.add_row(*row)
    print_table(table)
    if content["suite"]:
        echo("* = the paper's figure")
    for line in [*average_lines(content), *(f"- {note}" for note in content["notes"])]:
        echo(line)
    if path is not None:
        echo(f"suite: {path}")


def _list_benchmarks(*, json: bool) -> None:
    from rlvr_cli.evaluation.benchmarks import HEADER, listing, rows_alone, rows_of, sources_of
    from rlvr_cli.tasks.suites import SUITES

    content = listing()
    if json:
        print_json(content)
        return
    table = plain_table("benchmark", "task", "problems", "what")
    for name, one in content["benchmarks"].items():
        table.add_row(name, one["task"], str(one["problems"]), one["what"])
    for name, one in content["generated"].items():
        table.add_row(name, one["task"], "eval.problems", one["what"])
    print_table(table)
    for title, rows, lines in [
        ("named alone", rows_alone(), ["samples by the number of problems; docs/evaluation.md has the rule"]),
        *(
            (f"suite {suite.name}, {suite.paper}", rows_of(suite), [*sources_of(suite), *suite.notes])
            for suite in SUITES.values()
        ),
    ]:
        echo(f"\n{title}")
        table = plain_table(*HEADER)
        for row in rows:
            table.add_row(*row)
        print_table(table)
        for line in lines:
            echo(f"- {line}")


def _show(outcome: EvaluationResult, comparison: PairedComparison | None) -> None:
    from rlvr_cli.evaluation.tables import accuracy_table, comparison_table, evaluation_headline

    echo(evaluation_headline(outcome.result))
    header, rows = accuracy_table(outcome.result)
    if comparison is not None:
        before, after = comparison.before.result["label"], outcome.result["label"]
        header, rows = comparison_table(before, after, comparison.overall, comparison.by_subgroup)
    table = plain_table(*header)
    for row in rows:
        table.add_row(*row)
    print_table(table)
    echo(f"samples and metrics: {outcome.folder}")
