"""`rlvr tasks`: list tasks and data sets, show a task, fetch, generate and filter problems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_cli.cli.command import App, key_option, key_options
from rlvr_cli.cli.options import DATA, REWARD, Overwrite, TrustRemoteCode, output
from rlvr_cli.cli.output import Format, ListFormat, echo, print_json, print_waiting
from rlvr_cli.cli.output import show as show_document
from rlvr_cli.core.errors import UserError, collect_problems

app = App(help="List the tasks, show one with a judged answer, generate or filter problems.")

Name = Annotated[str, typer.Argument(metavar="TASK", help="A task, as `kk`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK.KEY=VALUE", help="Keys of the task, as task.style=compact.", show_default=False),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="RLVR_DATA_DIR",
        show_envvar=False,
        help="Folder of data sets, as task.data_dir. Default: RLVR_DATA_DIR, else data/public.",
    ),
]


@app.callback(invoke_without_command=True)
def tasks(context: typer.Context) -> None:
    """List the tasks, show one with a judged answer, generate problems. Without a command: list."""
    if context.invoked_subcommand is None:
        list_command()


@app.command("list")
def list_command(form: ListFormat = "table") -> None:
    """List every task: description, problems, lab model, keys."""
    from rlvr_cli.describe.task import tasks_document

    show_document(form, tasks_document())


@app.command()
def sets(data_dir: DataDir = None, form: ListFormat = "table") -> None:
    """List the data sets of task.data and --benchmark: task, rows in the folder, hub, licence."""
    from rlvr_cli.core.table import ResultDocument, Table
    from rlvr_cli.describe.task import data_set_rows
    from rlvr_cli.tasks.data import PUBLIC, is_fetched
    from rlvr_cli.tasks.sets import data_sets

    if data_dir is None and any(map(is_fetched, data_sets().values())):
        data_dir = Path(PUBLIC)
    rows = data_set_rows(data_dir)
    cells = [
        (
            row["name"],
            row["task"],
            *(_count(row, split) for split in ("train", "test")),
            row["what"],
            row["hub"] or ("none known" if row["files"] else "-"),
            row["licence"],
        )
        for row in rows
    ]
    note = f"Numbers are rows in {data_dir}; no file: the data set has this split, the folder does not."
    if data_dir is None:
        note = "yes: has this split; any: generated in any number. --data-dir counts the rows in a folder."
    note += " `rlvr tasks fetch NAME` downloads those on the hub."
    show_document(
        form,
        ResultDocument(
            tables=[Table("", ("name", "task", "train", "test", "what it is", "hub data set", "licence"), cells)],
            data={"folder": str(data_dir) if data_dir is not None else None, "sets": rows},
            after=[note],
            rows=rows,
        ),
    )


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of data sets (`rlvr tasks sets`).")],
    data_dir: DataDir = None,
    revision: Annotated[
        str | None,
        typer.Option("--revision", metavar="REV", help="Commit, branch or tag on the hub. Default: the newest."),
    ] = None,
    overwrite: Overwrite = False,
    form: Format = "table",
) -> None:
    """Download public data sets into the folder, for task.data, --benchmark and offline runs.

    Each is written completely or not at all, with a manifest: revision, licence, rows and hashes.
    """
    from dataclasses import asdict

    from rlvr_cli.models.source import find_connection_problem, is_offline
    from rlvr_cli.tasks.data import PUBLIC
    from rlvr_cli.tasks.fetch import fetch as fetch_set
    from rlvr_cli.tasks.sets import task_to_fetch

    folder = data_dir or Path(PUBLIC)
    tasks_of: dict[str, Any] = {}
    problems: list[str] = []
    for name in dict.fromkeys(names):
        with collect_problems(problems, UserError):
            tasks_of[name] = task_to_fetch(name)
    if revision is not None and len(tasks_of) > 1:
        problems.append(f"--revision {revision}: belongs to a single data set. Fetch them one by one.")
    if problems:
        raise UserError(problems)
    offline = "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set" if is_offline() else find_connection_problem()
    if offline is not None:
        raise UserError(f"rlvr tasks fetch: {offline}. Fetch on a machine with a network and copy {folder} here.")
    manifests = []
    for task in tasks_of.values():
        fetched = fetch_set(
            task, folder, revision=revision, overwrite=overwrite, say=lambda line: echo(line, file=sys.stderr)
        )
        manifests.append(asdict(fetched))
        if form != "json":
            rows = ", ".join(f"{file.rows:,} in {folder / file.name}" for file in fetched.files)
            echo(f"{fetched.name}: {rows}; {fetched.hub} at {fetched.revision[:12]}, licence: {fetched.licence}.")
    if form == "json":
        print_json({"folder": str(folder), "fetched": manifests})


@app.command()
def benchmarks(form: ListFormat = "table") -> None:
    """List the benchmarks and suites of `rlvr eval --benchmark`: samples, k, temperature, prompt, and their sources."""
    from rlvr_cli.evaluation.benchmarks import benchmarks_document

    show_document(form, benchmarks_document())


def _count(row: dict[str, Any], split: str) -> str:
    if not row["files"]:
        return "any"
    if split not in row["files"]:
        return "-"
    if "rows" not in row:
        return "yes"
    rows = row["rows"][split]
    return "no file" if rows is None else f"{rows:,}"


@app.command()
@key_options(DATA, REWARD)
def show(
    task: Name,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed that selects the problem.")] = 0,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Show the prompt for this model and count its tokens."),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Show a task: a problem (generated unless task.data is set), its prompt, and judged responses.

    The prompt is for a model without a chat template; with --model it is exactly the input of that model.
    """
    from rlvr_cli.config.load import choose_task, preset_of_task
    from rlvr_cli.describe.task import show_example
    from rlvr_cli.models.libraries import allow_remote_code

    allow_remote_code(trust_remote_code)
    if trust_remote_code and model is None:
        raise UserError("--trust-remote-code needs --model.")
    name = None
    if model is not None:
        print_waiting()
        from rlvr_cli.evaluation.targets import find_target

        name = find_target(preset_of_task(model, task), Path("runs")).subjects[0].model
    problem = show_example(choose_task(task, overrides or [], model=name, generated=True), seed, name)
    if form == "json":
        print_json(problem)
        return
    lowest, highest = problem["reward_range"]
    echo(f"{problem['name']}: {problem['what']} Problem of {problem['data']}. Rewards from {lowest:g} to {highest:g}.")
    echo(f"\n{_prompt_title(problem, model)}\n{problem['prompt']}")
    for judged in problem["judged"]:
        verdict = judged["verdict"]
        components = ", ".join(f"{name} {value:g}" for name, value in verdict["parts"].items() if value is not None)
        reward = "none" if verdict["reward"] is None else f"{verdict['reward']:g} ({components})"
        answer = "no answer" if verdict["answer"] is None else f"answer {verdict['answer']}"
        echo(f"\nresponse\n{judged['response']}")
        echo(f"\nverdict: {verdict['reason']}, reward {reward}, {answer}")


def _prompt_title(problem: dict[str, Any], model: str | None) -> str:
    if model is None:
        return "prompt"
    template = "has a chat template" if problem["chat_template"] else "has no chat template"
    return f"prompt for {model} ({template}), {problem['prompt_tokens']} tokens"


@app.command()
def generate(
    task: Name,
    out: Annotated[Path, output("FILE", "JSONL to write, a problem per line.")],
    overrides: Overrides = None,
    problems: Annotated[
        int, typer.Option("--problems", metavar="N", min=1, max=10_000_000, help="Number of problems.")
    ] = 100,
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="train, dev or test.")] = "train",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed that selects the problems.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write generated problems, or those of task.data, to a file.

    task.data can name the file, and each line is a `problem` for `rlvr score`.
    """
    from rlvr_cli.config.load import choose_task
    from rlvr_cli.describe.task import write_problems
    from rlvr_cli.tasks.sets import problems_name

    config = choose_task(task, overrides or [], generated=True)
    written = write_problems(config, out, count=problems, split=split, seed=seed, overwrite=overwrite)
    echo(f"{written:,} {split} problems of {problems_name(config.name, config.data)}: {out}")


@app.command("filter")
@key_options(key_option("eval.problems", "--problems", help="Attempt at most this many problems. Default: all."))
def filter_command(
    task: Name,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Model that attempts the problems: `lab`, a run, a checkpoint, a folder, a hub id.",
        ),
    ],
    out: Annotated[Path, output("FILE", "JSONL to write the kept problems to.")],
    overrides: Overrides = None,
    attempts: Annotated[int, typer.Option("--samples", "-n", metavar="N", help="Attempts per problem.")] = 2,
    keep_correct: Annotated[
        str,
        typer.Option("--keep-correct", metavar="LOW..HIGH", help="Correct attempts of a kept problem, as 0 or 1..7."),
    ] = "0",
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="train, dev, test, or all of a file.")
    ] = "train",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the attempts.")] = 0,
    overwrite: Overwrite = False,
    form: Format = "table",
) -> None:
    """Write the problems with a number of correct attempts in the range --keep-correct, for `task.data`.

    By default those that the model fails in both of two attempts. Attempts are kept: an interrupted call continues
    where it stopped, and another --keep-correct samples nothing.
    """
    from rlvr_cli.evaluation.filter import FilterOptions, make_filter, run_filter

    options = FilterOptions(
        task=task,
        model=model,
        output=out,
        overrides=tuple(overrides or []),
        attempts=attempts,
        keep_correct=keep_correct,
        split=split,
        seed=seed,
        overwrite=overwrite,
    )
    job = make_filter(options)
    from rlvr_cli.evaluation.filter import filter_sentences
    from rlvr_cli.evaluation.progress import progress_view

    with progress_view("attempts") as view:
        report = run_filter(job, options, view)
    if form == "json":
        print_json({"output": str(out), **report})
        return
    echo("\n".join(filter_sentences(out, report)))
