"""`rlvr export`: write the model of a run as a plain Hugging Face folder and push it to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.options import RUNS, Runs, TrustRemoteCode, output
from rlvr_cli.cli.output import Format, echo, print_json, print_waiting
from rlvr_cli.core.errors import UserError


def command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's name or path (its newest checkpoint), or the path of a checkpoint."
        ),
    ],
    output: Annotated[Path, output("DIR", "Folder to write.")],
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="NAME", help="float32, bfloat16, or auto = as in training.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in DIR.")] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option("--push-to-hub", metavar="REPO", help="Also push it to the hub, as user/model, with your login."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository on the hub as private.")] = False,
    root: Runs = RUNS,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Write the model of a run as a plain Hugging Face folder; adapters are merged into their base.

    Its model card reports the run's records and the results of `rlvr eval` on the checkpoint: evaluate first.
    """
    from rlvr_cli.evaluation.targets import find_target
    from rlvr_cli.models.libraries import allow_remote_code

    allow_remote_code(trust_remote_code)
    problems = []
    if dtype not in ("auto", "float32", "bfloat16"):
        problems.append(f"--dtype {dtype}: must be one of auto, float32, bfloat16.")
    if private and push_to_hub is None:
        problems.append("--private needs --push-to-hub.")
    if problems:
        raise UserError(problems)
    target = find_target(run, root)
    if target.run is None:
        raise UserError(f"{run}: no such run in {root}; a model needs no export. `rlvr runs list` shows the runs.")
    from rlvr_cli.models.libraries import quiet_hub

    print_waiting()
    quiet_hub()
    from rlvr_cli.models.export import check_output, check_push, export, push

    check_output(output, target.run, overwrite=overwrite)
    if push_to_hub is not None:
        check_push(push_to_hub, private=private)
    checkpoint, address = Path(target.subjects[0].model), None
    dtype = export(target.run, checkpoint, output, dtype=dtype)
    if push_to_hub is not None:
        address = push(output, push_to_hub, f"rlvr export of {checkpoint.name}", private=private)
    if form == "json":
        print_json({"folder": str(output), "checkpoint": str(checkpoint), "dtype": dtype, "pushed": address})
        return
    for note in target.notes:
        echo(note)
    echo(f"{output}: {checkpoint.name} in {dtype}")
    if address is not None:
        echo(f"pushed: {address}")
