"""`rlvr score`: judge responses from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.options import Overwrite, output
from rlvr_cli.cli.output import Format, echo, print_json

OVERRIDES_HELP = "Keys of the task's verifier, as task.reward=gtpo. `rlvr config keys` lists them."
WORKERS_HELP = "Processes that judge, for mathematics and user tasks. Default: 2."
_MOST_NAMED = 5


def command(
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="The task: `rlvr tasks` lists them.")],
    source: Annotated[
        Path, typer.Option("--input", metavar="FILE", help='JSONL (.gz) of {"problem": {...}, "response": "..."}.')
    ],
    target: Annotated[Path, output("FILE", "JSONL of verdicts, in the input's order.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="TASK.KEY=VALUE", help=OVERRIDES_HELP, show_default=False)
    ] = None,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="RULE", help="paper (the papers' rewards, the default) or strict.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, max=256, help=WORKERS_HELP, show_default=False)
    ] = None,
    overwrite: Overwrite = False,
    form: Format = "table",
) -> None:
    """Judge responses: a verdict per line with reward, parts, answer, correct and reason.

    A response is the continuation of the task's prompt.
    """
    from rlvr_cli.config.load import choose_task
    from rlvr_cli.evaluation.score import check_keys, score_file
    from rlvr_cli.tasks.prompts import DEFAULT_STYLE

    check_keys(overrides or [])
    config = choose_task(task, overrides or [], rule)
    with _progress_bar() as progress:
        scored = score_file(
            config.for_model(DEFAULT_STYLE), source, target, workers=workers, overwrite=overwrite, progress=progress
        )
    if form == "json":
        print_json({"output": str(target), **vars(scored)})
        return
    reward = "" if scored.reward is None else f", mean reward {scored.reward:.3f}"
    echo(
        f"{scored.responses:,} responses judged: {scored.correct:,} correct "
        f"({scored.correct / scored.responses:.1%}), {scored.unscorable:,} not scorable{reward}"
    )
    echo("reasons: " + ", ".join(f"{reason} {count:,}" for reason, count in scored.reasons.items()))
    if scored.unreadable:
        more = ", ..." if scored.unreadable[_MOST_NAMED:] else ""
        rows = ", ".join(map(str, scored.unreadable[:_MOST_NAMED])) + more
        echo(f"not scorable, since the gold answer cannot be parsed: responses {rows}")
    echo(f"verdicts: {target}")


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    from rlvr_cli.launch.stopping import show_progress_bar

    console = Console(stderr=True, highlight=False, markup=False)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with show_progress_bar(bar):
        judging = bar.add_task("judging", total=None)
        yield lambda done, planned: bar.update(judging, completed=done, total=planned)
