"""`rlvr plan`: a dry run of `rlvr train`: steps, tokens, memory and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.command import MORE, key_options
from rlvr_cli.cli.options import TRAINING, ConfigFiles, Model, Overrides, Speed, Task, config_sources
from rlvr_cli.cli.output import ListFormat, show
from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.config.schema import Config


@key_options(*TRAINING)
def command(
    config: ConfigFiles = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME,...",
            help="Training method, as `grpo`; or several, as `grpo,dgpo`, to compare.",
        ),
    ] = None,
    task: Task = None,
    model: Model = None,
    overrides: Overrides = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help="Memory of each GPU, as 80GiB or 24GB."),
    ] = None,
    speed: Speed = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--prompt-tokens",
            metavar="N",
            min=1,
            rich_help_panel=MORE,
            help="Tokens of the longest prompt, for the memory estimate.",
        ),
    ] = None,
    form: ListFormat = "table",
) -> None:
    """Estimate a training without running it: steps, off-policyness, tokens, memory, time.

    No weights are loaded. For several methods, also reports which have the same gradient.
    """
    from rlvr_cli.config.checks import check_training
    from rlvr_cli.config.load import load_config
    from rlvr_cli.planning.plan import build_plan, parse_speed
    from rlvr_cli.tasks.sets import needs_folder

    sources, measured_speed = config_sources(config), parse_speed(speed)

    def load_checked(name: str | None) -> Config:
        config = load_config(sources, name, task, model, overrides or [], import_files=True, from_start=True)
        if not needs_folder(config.task):
            check_training(config)
        return config

    def make_plan(settings: Config) -> dict[str, Any]:
        return build_plan(settings, gpu_memory=gpu_memory, prompt_tokens=prompt_tokens, speed=measured_speed)

    names = [name.strip() for text in method or [] for name in text.split(",")]
    if len(names) > 1:
        from rlvr_cli.methods.equivalence import find_same_gradients
        from rlvr_cli.planning.document import arms_document

        arms = _load_arms(names, load_checked)
        updates = arms[0].update.mini_batches * arms[0].update.epochs
        methods = {arm.method.name: arm.method for arm in arms}
        same = find_same_gradients(methods, updates, arms[0].rollout.active_correction)
        show(form, arms_document([*map(make_plan, arms)], same))
        return
    from rlvr_cli.planning.document import plan_document

    settings = load_checked(names[0] if names else None)
    show(form, plan_document(make_plan(settings)))


def _load_arms(names: Sequence[str], load: Callable[[str], Config]) -> list[Config]:
    """Return each method's configuration. Raises UserError: each problem once, with its arms unless all have it."""
    from rlvr_cli.core.errors import ConfigError

    if not all(names):
        raise UserError(f"--method {','.join(names)}  has an empty name between its commas")
    arms: list[Config] = []
    arms_of_problem: dict[tuple[str, str], list[str]] = {}
    for name in names:
        try:
            arms.append(load(name))
        except ConfigError as error:
            for problem in error.by_origin:
                arms_of_problem.setdefault(problem, []).append(name)
    if arms_of_problem:
        raise ConfigError([_name_arms(problem, its_arms, names) for problem, its_arms in arms_of_problem.items()])
    resolved = [arm.method.name for arm in arms]
    for name in resolved:
        if resolved.count(name) > 1:
            raise UserError(f"--method {','.join(names)}  names {name} twice; name each once")
    return arms


def _name_arms(problem: tuple[str, str], its_arms: Sequence[str], arms: Sequence[str]) -> tuple[str, str]:
    """Return the problem with the names of the arms that have it, unless all do or its text has them."""
    location, message = problem
    is_complete = len(its_arms) == len(arms) or location.startswith("--method")
    return location, message if is_complete else f"{message} (with --method {', '.join(its_arms)})"
