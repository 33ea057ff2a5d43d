"""Tables and sentences of a plan (:mod:`rlvr_cli.planning.plan`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.text import format_duration
from rlvr_cli.methods.equivalence import SameGradient
from rlvr_cli.models.sampling.memory import gib

MAX_CHANGES = 5
# Rows in which methods differ, shown in a separate table for several methods.
PER_METHOD = ("method", "optimizer steps per rollout", "optimizer steps", "checkpoints")
PLAN = ("quantity", "value", "what it is")


def plan_document(plan: dict[str, Any]) -> ResultDocument:
    memory = [] if plan["memory"] is None else _memory_tables(plan["memory"])
    lines = [
        _data_sentence(plan),
        plan["about_data"],
        _model_sentence(plan),
        *_memory_lines(plan["memory"]),
        _time_sentence(plan),
        *plan["cautions"],
    ]
    return ResultDocument(
        tables=[Table("", PLAN, _plan_rows(plan)), *memory],
        data=plan,
        after=[line for line in lines if line],
        rows=[plan],
    )


def arms_document(plans: list[dict[str, Any]], same: Sequence[SameGradient]) -> ResultDocument:
    # At least one of several methods samples.
    shared = [row for row in _plan_rows(next(plan for plan in plans if plan["policy_age"])) if row[0] not in PER_METHOD]
    header = ("method", "passes", "steps per rollout", "optimizer steps", "updates old, mean", "largest", "memory")
    lines = [
        f"{plan['method']} samples nothing: a rollout is a batch of {plan['completions_per_rollout']:,} "
        f"demonstrations ({' '.join(text for text in _describe_demonstrations(plan) if text)})."
        for plan in plans
        if not plan["policy_age"]
    ]
    if len({plan["steps_per_rollout"] for plan in plans}) > 1:
        lines.append("At equal rollouts these methods make different numbers of optimizer steps.")
    lines += [group.sentence() for group in same]
    lines += dict.fromkeys(caution for plan in plans for caution in plan["cautions"])
    groups = [{"methods": list(group.names), "when": group.when, "note": group.sentence()} for group in same]
    return ResultDocument(
        tables=[Table("", PLAN, shared), Table("", header, [*map(_arm_row, plans)])],
        data={"arms": plans, "same_gradient": groups},
        after=lines,
        rows=plans,
    )


def _arm_row(plan: dict[str, Any]) -> tuple[str, ...]:
    ages = plan["policy_age"]
    return (
        plan["method"],
        str(plan["passes"]),
        f"{plan['steps_per_rollout']:,}",
        f"{plan['steps_total']:,}",
        f"{ages['mean']:g}" if ages else "-",
        f"{ages['largest']:,}" if ages else "-",
        _memory_cell(plan["memory"]),
    )


def _describe_forward_passes(plan: dict[str, Any], rows: str) -> tuple[str, str]:
    if plan["policy_age"] is None:
        return f"{plan['micro_batches_per_step']:,}", f"of {plan['micro_batch']} {rows} (update.micro_batch)"
    if plan["micro_tokens"] is not None:
        return "-", f"of {plan['micro_tokens']:,} tokens (update.micro_tokens); their number depends on the completions"
    return (
        "-",
        f"of the tokens of {plan['micro_batch']} of the longest {rows} (update.micro_batch); their number depends on "
        f"the {rows}",
    )


def _plan_rows(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    def number(name: str) -> str:
        return f"{plan[name]:,}"

    sampled = plan["policy_age"] is not None
    rows, batch = ("completions", "rollout") if sampled else ("demonstrations", "batch")
    return [
        ("method", plan["method"], ""),
        ("task, model", f"{plan['task']}, {plan['model']}", ""),
        (
            f"{rows} per {batch}",
            number("completions_per_rollout"),
            f"{plan['prompts']} prompts x {plan['group_size']} completions, at most "
            f"{plan['rollout_tokens_at_most']:,} tokens"
            if sampled
            else f"rollout.prompts x rollout.group_size, {plan['prompts']} x {plan['group_size']}",
        ),
        (
            f"optimizer steps per {batch}",
            number("steps_per_rollout"),
            f"{plan['mini_batches']} updates x {plan['epochs']} epochs"
            + (f" x {plan['passes']} passes of the method" if plan["passes"] > 1 else ""),
        ),
        (f"{rows} per step", number("completions_per_step"), ""),
        ("forward passes per step", *_describe_forward_passes(plan, rows)),
        ("rollouts" if sampled else "batches", number("rollouts"), "the budget (train.rollouts)"),
        ("optimizer steps", number("steps_total"), f"{'rollouts' if sampled else 'batches'} x steps per {batch}"),
        (
            "completions" if sampled else "demonstrations drawn",
            number("completions_total"),
            f"at most {plan['completion_tokens_at_most']:,} tokens{'' if sampled else ' of completions'}",
        ),
        ("training problems", *_describe_problems(plan))
        if sampled
        else ("demonstrations", *_describe_demonstrations(plan)),
        ("checkpoints", number("checkpoints_written"), f"of which the newest {plan['checkpoints_kept']} are kept"),
        ("evaluations on the way", number("evaluations"), _describe_evaluation(plan)),
    ]


def _describe_evaluation(plan: dict[str, Any]) -> str:
    each = f"of {plan['validation_completions']:,} completions each; " if plan["evaluations"] else ""
    number, benchmarks = plan["benchmark_completions"], ", ".join(plan["eval_benchmarks"])
    number, where = (number, f" on {benchmarks}") if benchmarks else (plan["eval_completions"], "")
    return f"{each}`rlvr eval` samples {number:,} completions{where}"


def _describe_problems(plan: dict[str, Any]) -> tuple[str, str]:
    source, visits = plan["problems_from"], plan["visits_per_problem"]
    origin = "" if source is None else f"of {source} (task.data), "
    if visits is not None:
        return f"{plan['problems']:,}", f"{origin}each seen {visits:.2f} times on average"
    most = plan["problems_at_most"]
    return "all" if most is None else f"at most {most:,}", f"{origin}not counted"


def _describe_demonstrations(plan: dict[str, Any]) -> tuple[str, str]:
    if plan["data"] is not None:
        return "", f"the rows of {plan['data']} (method.data)"
    visits = plan["visits_per_demonstration"]
    return f"{plan['demonstrations']:,}", f"worked solutions of the task, each drawn {visits:.2f} times on average"


def _data_sentence(plan: dict[str, Any]) -> str:
    ages = plan["policy_age"]
    if ages is None:
        return "Imitation: training samples nothing, so importance ratios do not apply."
    if plan["behind"]:
        return (
            f"Off-policy: each rollout is sampled by the weights of {plan['behind']} rollouts before. Ratios are those "
            "to the weights before its first update; rollout.correction is for the rest."
        )
    if ages["largest"] == 0:
        return "On-policy: each rollout batch makes one optimizer step, so every ratio is 1 and clipping has no effect."
    return (
        f"Off-policy: the data of a rollout are {ages['mean']:g} updates old on average when they are used, "
        f"{ages['largest']} at most (the first step of each rollout is on-policy)."
    )


def _memory_cell(memory: dict[str, Any] | None) -> str:
    if memory is None:
        return "?"
    return gib(memory["peak"]) + {"yes": "", "tight": ", tight", "no": ", does not fit"}[memory["fits"]]


def _model_sentence(plan: dict[str, Any]) -> str:
    parameters, rate = plan["parameters"], plan["learning_rate"]
    rate_text = "" if rate is None else f" Peak learning rate {rate:.4g}."
    if parameters["total"] is None:
        return f"Parameters and memory are unknown: {parameters['note']}.{rate_text}"
    trained = "" if parameters["trained"] == parameters["total"] else f", {parameters['trained']:,} of them trained"
    if parameters["trained"] > parameters["total"]:
        trained = f", {parameters['trained']:,} trained with the value head"
    return f"Model: {parameters['total']:,} parameters{trained} ({parameters['note']}).{rate_text}"


def _memory_tables(memory: dict[str, Any]) -> list[Table]:
    setting, gpu = memory["setting"], memory["device"] == "gpu"
    assumed = " (assumed; --prompt-tokens N)" if memory["prompt_tokens_assumed"] else ""
    each = f"each of {setting['processes']} {'GPUs' if gpu else 'processes on the CPU'}"
    device = each if setting["processes"] > 1 else f"the {'GPU' if gpu else 'CPU'}"
    micro_batch = f"{setting['micro_batch']} row{'s' if setting['micro_batch'] > 1 else ''}"
    offloads = " with offloading" if setting["offload_optimizer"] or setting["offload_weights"] else ""
    title = (
        f"Memory of {device}, {setting['strategy']}{offloads}: micro-batches of {micro_batch} of "
        f"{setting['prompt_tokens']:,}{assumed} + {setting['completion_tokens']:,} tokens, gradient checkpointing "
        f"{'on' if setting['checkpointing'] else 'off'}"
    )
    fits = {"yes": "fits", "tight": "tight: it may fail", "no": "DOES NOT FIT"}[memory["fits"]]
    rows = [
        *((term["name"], gib(term["bytes"]), term["why"]) for term in memory["terms"]),
        ("sum", gib(memory["peak"]), f"of {gib(memory['available'])} ({memory['available_why']}): {fits}"),
    ]
    tables = [Table(title, (f"at the peak ({memory['peak_phase']})", "memory", "what it is"), rows)]
    changes = _change_rows(memory)
    return [*tables, Table("What to change:", ("settings", "memory"), changes)] if changes else tables


def _memory_lines(memory: dict[str, Any] | None) -> list[str]:
    if memory is None:
        return []
    lines = []
    if memory["host"]:
        lines.append(f"Host memory per GPU: {gib(memory['host'])} ({memory['host_why']}).")
    if short := memory["vllm_shortage"]:
        lines.append(
            f"vLLM refuses to start: its share of a GPU, {gib(short['share'])}, cannot hold the weights, "
            f"{gib(short['weights'])}. "
            + (
                f"Set rollout.vllm.gpu_memory={short['least']:g} or more."
                if short["least"] <= 0.95
                else "Use a smaller model or a larger GPU."
            )
        )
    if memory["fits"] != "yes" and not short and not _change_rows(memory):
        lines.append("No single setting helps: use a smaller model or a larger GPU.")
    return lines


def _change_rows(memory: dict[str, Any]) -> list[tuple[str, str]]:
    fits = {"yes": "fits", "tight": "tight", "no": "does not fit"}
    return [
        (change["settings"], f"{gib(change['peak'])}, {fits[change['fits']]}")
        for change in memory["changes"][:MAX_CHANGES]
    ]


def _time_sentence(plan: dict[str, Any]) -> str:
    time, sampled = plan["time"], plan["policy_age"] is not None
    if time is None:
        return (
            "Time: unknown without a speed. Use --speed RUN for that of a run, or --speed X in "
            f"{'completion' if sampled else 'demonstration'} tokens per second."
        )
    expected = time["seconds_expected"]
    usual = (
        "" if expected is None else f"{format_duration(expected)} at {time['tokens_per_completion']:.0f} tokens each, "
    )
    return (
        f"Time: {usual}{format_duration(time['seconds_at_most'])} if every completion has the full length, at "
        f"{time['tokens_per_second']:,.0f} tokens per second ({time['source']})."
    )
