"""The part of `rlvr plan` for people that tells of parameters, memory and time."""

from __future__ import annotations

from typing import Any

from rlvr_cli.cli.common import echo, plain_table, print_table

MOST_CHANGES = 5


def print_resources(plan: dict[str, Any]) -> None:
    """Print what :func:`rlvr_cli.planning.report.resources` found."""
    echo()
    echo(_model_sentence(plan))
    if plan["memory"] is not None:
        _print_memory(plan["memory"])
    echo(f"\n{_time_sentence(plan)}")


def memory_in_short(plan: dict[str, Any]) -> str:
    """The memory of a plan in a table's cell: `12.3 GiB`, and whether it fits where it does not."""
    from rlvr_cli.models.sampling.memory import gib

    memory = plan["memory"]
    if memory is None:
        return "?"
    return gib(memory["peak"]) + {"yes": "", "tight": ", tight", "no": ", does not fit"}[memory["fits"]]


def _model_sentence(plan: dict[str, Any]) -> str:
    parameters, rate = plan["parameters"], plan["learning_rate"]
    said_rate = "" if rate is None else f" Peak learning rate {rate:.4g}."
    if parameters["total"] is None:
        return f"Parameters and memory are not known: {parameters['note']}.{said_rate}"
    trained = "" if parameters["trained"] == parameters["total"] else f", {parameters['trained']:,} of them trained"
    if parameters["trained"] > parameters["total"]:
        trained = f", {parameters['trained']:,} trained with the value head"
    return f"Model: {parameters['total']:,} parameters{trained} ({parameters['note']}).{said_rate}"


def _print_memory(memory: dict[str, Any]) -> None:
    from rlvr_cli.models.sampling.memory import gib

    setting, gpu = memory["setting"], memory["device"] == "gpu"
    assumed = " (assumed; --prompt-tokens N)" if memory["prompt_tokens_assumed"] else ""
    unit = "GPU" if gpu else "CPU"
    each = f"each of {setting['processes']} {'GPUs' if gpu else 'processes on the CPU'}"
    where = each if setting["processes"] > 1 else f"the {unit}"
    rows = "rows" if setting["micro_batch"] > 1 else "row"
    offloads = " with offloading" if setting["offload_optimizer"] or setting["offload_weights"] else ""
    echo(
        f"\nMemory of {where}, {setting['strategy']}{offloads}: micro-batches of {setting['micro_batch']} {rows} of "
        f"{setting['prompt_tokens']:,}{assumed} + {setting['completion_tokens']:,} tokens, gradient checkpointing "
        f"{'on' if setting['checkpointing'] else 'off'}"
    )
    echo(f"At the peak ({memory['peak_phase']}):")
    table = plain_table("", "", "")
    for term in memory["terms"]:
        table.add_row(term["name"], gib(term["bytes"]), term["why"])
    fits = {"yes": "fits", "tight": "tight: it may fail", "no": "DOES NOT FIT"}[memory["fits"]]
    table.add_row("sum", gib(memory["peak"]), f"of {gib(memory['available'])} ({memory['available_why']}): {fits}")
    table.show_header = False
    print_table(table)
    if memory["host"]:
        echo(f"In the computer's memory, for each GPU: {gib(memory['host'])} ({memory['host_why']}).")
    _print_changes(memory)


def _print_changes(memory: dict[str, Any]) -> None:
    from rlvr_cli.models.sampling.memory import gib

    if memory["fits"] == "yes":
        return
    echo("\nWhat to change:")
    table = plain_table("", "")
    fits = {"yes": "fits", "tight": "tight", "no": "does not fit alone"}
    for change in memory["changes"][:MOST_CHANGES]:
        table.add_row(change["settings"], f"{gib(change['peak'])}, {fits[change['fits']]}")
    if memory["together"] is not None:
        table.add_row(memory["together"]["settings"], f"{gib(memory['together']['peak'])}, fits together")
    if memory["more_gpus"] is not None:
        table.add_row(memory["more_gpus"]["settings"], f"{gib(memory['more_gpus']['peak'])} on each GPU, fits")
    table.show_header = False
    if table.row_count:
        print_table(table)
    else:
        echo("no single setting helps: take a smaller model or a larger GPU.")


def _time_sentence(plan: dict[str, Any]) -> str:
    from rlvr_cli.planning.duration import in_words

    time, sampled = plan["time"], plan["policy_age"] is not None
    if time is None:
        return (
            f"Time: not known without a speed. --run RUN takes it from a run; --tokens-per-second X gives "
            f"{'completion' if sampled else 'demonstration'} tokens a second."
        )
    expected = time["seconds_expected"]
    usual = "" if expected is None else f"{in_words(expected)} at {time['tokens_per_completion']:.0f} tokens each, "
    return (
        f"Time: {usual}{in_words(time['seconds_at_most'])} if every completion has the full length, at "
        f"{time['tokens_per_second']:,.0f} tokens a second ({time['source']})."
    )
