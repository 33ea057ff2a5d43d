"""A task's configuration by its name, for commands that need nothing else of a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import Task
from rlvr_cli.tasks.sets import check_folder

RULES = ("paper", "strict")


def choose_task(
    name: str,
    overrides: Sequence[str] = (),
    rule: str | None = None,
    model: str | None = None,
    generated: bool = False,
) -> Task:
    """The configuration of task ``name`` with ``overrides`` (`task.key=value`).

    Args:
        generated: the generated problems, unless the overrides name data or their folder.
        rule: paper or strict; None leaves what the overrides and the defaults say. `paper` of Knights & Knaves is the
            Logic-RL paper's score.
        model: whose preset has a say, where it is one; None = the default model.
    Raises:
        UserError: an unknown task, rule, key or value, or a folder of data without a name to look for in it.
    """
    foreign = [text for text in overrides if not text.startswith("task.") or text.startswith("task.name=")]
    if foreign:
        raise UserError([f"{text}: only keys of the task are set here, as task.style=..." for text in foreign])
    if rule is not None and rule not in RULES:
        raise UserError(f"--rule {rule}: unknown. Allowed: {', '.join(RULES)}")
    if generated and not any(text.startswith(("task.data=", "task.data_dir=")) for text in overrides):
        overrides = ["task.data=null", *overrides]
    config = load_config(task=name, model=model, overrides=overrides).task
    check_folder(config)
    if rule is None:
        return config
    key, value = config.with_rule(rule)
    if any(text.startswith(f"task.{key}=") for text in overrides):
        raise UserError(f"--rule {rule} and task.{key} set the same thing; give one of them.")
    return load_config(task=name, model=model, overrides=[*overrides, f"task.{key}={value}"]).task
