"""`rlvr tasks`: every task, one in full with a judged answer, and generated problems as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.common import Json, list_by_default, plain_table, print_json, print_table

app = typer.Typer(help="List the tasks, show one with a judged answer, generate problems.")

Name = Annotated[str, typer.Argument(metavar="TASK", help="A task, as `kk`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK.KEY=VALUE", help="Keys of the task, as task.style=compact.", show_default=False),
]


@app.callback(invoke_without_command=True)
def tasks(context: typer.Context, as_json: Json = False) -> None:
    """List the tasks, show one with a judged answer, generate problems. Without a command: list."""
    list_by_default(context, as_json, list_command)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List every task: what it is, its keys, and the reasons of its verdicts."""
    from rlvr_cli.tasks.describe import described

    rows = described()
    if as_json:
        print_json({"tasks": rows})
        return
    table = plain_table("task", "what it is", "keys (task.*)", "a verdict's reasons")
    for row in rows:
        table.add_row(row["name"], row["what"], ", ".join(row["keys"]), ", ".join(row["reasons"]))
    print_table(table)


@app.command()
def show(
    task: Name,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides which problem is shown.")] = 0,
    as_json: Json = False,
) -> None:
    """Show one task: a problem, its prompt for a model without a chat template, and judged responses."""
    from rlvr_cli.tasks.choose import choose_task
    from rlvr_cli.tasks.describe import example

    shown = example(choose_task(task, overrides or []), seed)
    if as_json:
        print_json(shown)
        return
    lowest, highest = shown["reward_range"]
    print(f"{shown['name']}: {shown['what']} Rewards from {lowest:g} to {highest:g}.")
    print(f"\nprompt\n{shown['prompt']}")
    for judged in shown["judged"]:
        verdict = judged["verdict"]
        parts = ", ".join(f"{name} {value:g}" for name, value in verdict["parts"].items() if value is not None)
        reward = "none" if verdict["reward"] is None else f"{verdict['reward']:g} ({parts})"
        print(f"\nresponse\n{judged['response']}")
        print(f"\nverdict: {verdict['reason']}, reward {reward}, answer {verdict['answer']}")


@app.command()
def generate(
    task: Name,
    out: Annotated[Path, typer.Option("--output", metavar="FILE", help="JSONL to write, a problem a line.")],
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=10_000_000, help="Problems.")] = 100,
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="train, dev or test.")] = "train",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides which problems.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """Write generated problems to a file that `task.data` reads, and `problem` of `rlvr score` is a line of."""
    from rlvr_cli.tasks.choose import choose_task
    from rlvr_cli.tasks.describe import write_problems

    config = choose_task(task, overrides or [])
    written = write_problems(config, out, count=count, split=split, seed=seed, overwrite=overwrite)
    print(f"{written:,} {split} problems of {task}: {out}")
