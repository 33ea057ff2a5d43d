"""`rlvr plan`: what `rlvr train` would do with the same options, without doing it."""

from __future__ import annotations

from typing import Any

from rlvr_cli.cli.common import (
    ConfigFiles,
    Json,
    Method,
    Model,
    Overrides,
    Task,
    plain_table,
    print_json,
    print_table,
)


def command(
    config: ConfigFiles = None,
    method: Method = None,
    task: Task = None,
    model: Model = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show the batch arithmetic of a training: steps, how far off-policy, tokens, checkpoints."""
    from rlvr_cli.config.load import load_config

    plan = make_plan(load_config(config or [], method, task, model, overrides or []))
    if as_json:
        print_json(plan)
        return
    table = plain_table("", "", "")
    for name, number, meaning in _rows(plan):
        table.add_row(name, number, meaning)
    table.show_header = False
    print_table(table)
    print(f"\n{_policy_sentence(plan)}")


def make_plan(config: Any) -> dict[str, Any]:
    """The numbers of a training with `config` (a `Config`); `--json` prints them.

    `policy_age` has one entry for each optimizer step made from a rollout batch: the number of updates between the
    policy that sampled the data and the policy that the step updates (0 = on-policy).
    """
    from rlvr_cli.config.batch import batch_arithmetic

    batch = batch_arithmetic(config)
    ages = list(range(batch.steps_per_rollout))
    return {
        "method": config.method.name,
        "task": config.task.name,
        "model": config.model.name,
        "prompts": config.rollout.prompts,
        "group_size": config.rollout.group_size,
        "completions_per_rollout": batch.completions,
        "updates_per_rollout": config.update.updates_per_rollout,
        "epochs": config.update.epochs,
        "steps_per_rollout": batch.steps_per_rollout,
        "completions_per_step": batch.step_batch,
        "micro_batch": batch.micro_batch,
        "micro_batches_per_step": batch.micro_batches,
        "rollouts": config.train.rollouts,
        "steps_total": batch.steps_total,
        "policy_age": {"mean": sum(ages) / len(ages), "largest": ages[-1], "of_each_step": ages},
        "completions_total": batch.completions * config.train.rollouts,
        "completion_tokens_at_most": batch.completions * config.train.rollouts * config.rollout.max_new_tokens,
        "problems": config.task.problems,
        "visits_per_problem": config.rollout.prompts * config.train.rollouts / config.task.problems,
        "checkpoints_written": _checkpoints(batch.steps_total, config.checkpoint.every),
        "checkpoints_kept": config.checkpoint.keep,
        "evaluations": config.train.rollouts // config.eval.every if config.eval.every else 0,
        "eval_completions": config.eval.problems * (config.eval.samples + config.eval.greedy),
    }


def _checkpoints(steps_total: int, every: int) -> int:
    """One every `every` steps, and one of the last step."""
    return -(-steps_total // every)


def _rows(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    def number(name: str) -> str:
        return f"{plan[name]:,}"

    return [
        ("method, task, model", f"{plan['method']}, {plan['task']}, {plan['model']}", ""),
        (
            "completions per rollout",
            number("completions_per_rollout"),
            f"{plan['prompts']} prompts x {plan['group_size']} completions",
        ),
        (
            "optimizer steps per rollout",
            number("steps_per_rollout"),
            f"{plan['updates_per_rollout']} updates x {plan['epochs']} epochs",
        ),
        ("completions per step", number("completions_per_step"), ""),
        (
            "forward passes per step",
            number("micro_batches_per_step"),
            f"of {plan['micro_batch']} completions (update.micro_batch)",
        ),
        ("rollouts", number("rollouts"), "the budget (train.rollouts)"),
        ("optimizer steps", number("steps_total"), "rollouts x steps per rollout"),
        (
            "completions",
            number("completions_total"),
            f"at most {plan['completion_tokens_at_most']:,} tokens",
        ),
        (
            "training problems",
            number("problems"),
            f"each seen {plan['visits_per_problem']:.2f} times on average",
        ),
        (
            "checkpoints",
            number("checkpoints_written"),
            f"of which the newest {plan['checkpoints_kept']} are kept",
        ),
        (
            "evaluations on the way",
            number("evaluations"),
            f"`rlvr eval` samples {plan['eval_completions']:,} completions",
        ),
    ]


def _policy_sentence(plan: dict[str, Any]) -> str:
    ages = plan["policy_age"]
    if ages["largest"] == 0:
        return "On-policy: each rollout batch makes one optimizer step, so every ratio is 1 and no clip acts."
    return (
        f"Off-policy: the data of a rollout are {ages['mean']:g} updates old on average when they are used, "
        f"{ages['largest']} at most (the first step of each rollout is on-policy)."
    )
