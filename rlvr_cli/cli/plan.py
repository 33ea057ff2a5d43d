"""`rlvr plan`: what `rlvr train` would do with the same options, without doing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.options import (
    ConfigFiles,
    DataDir,
    DataOption,
    Model,
    Overrides,
    Reward,
    Task,
    config_sources,
    with_data_dir,
    with_own,
)
from rlvr_cli.cli.output import Format, echo, plain_table, print_json, print_table
from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.config.schema import Config
    from rlvr_cli.planning.plan import Speed


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME,...",
        help="Training method, as `grpo`; several, separated by commas or each with its own --method, are compared.",
    ),
]


def command(
    config: ConfigFiles = None,
    method: Methods = None,
    task: Task = None,
    model: Model = None,
    data: DataOption = None,
    reward: Reward = None,
    data_dir: DataDir = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", metavar="N", min=1, help="Plan for this many GPUs (launch.processes)."),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of one GPU, as 80GiB or 24GB.")
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", metavar="N", min=1, help="Tokens of the longest prompt, for the memory."),
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-second",
            metavar="X",
            min=1e-6,
            help="Completion tokens a second of the whole loop, for the time.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Take the speed from the timings of this run.")
    ] = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Also run one worst-case batch here, and report its memory (loads the model)."),
    ] = False,
    overrides: Overrides = None,
    form: Format = "table",
) -> None:
    """Show what a training would do and need: steps, how far off-policy, tokens, memory, time.

    No weights are loaded. Of several methods: also which of them have the same gradient.
    """
    from rlvr_cli.config.checks import cautions, check_training
    from rlvr_cli.config.load import load_config
    from rlvr_cli.planning.plan import plan_training, resources
    from rlvr_cli.tasks.data import generated_hint
    from rlvr_cli.tasks.sets import waits_for_a_folder

    asked = with_own(with_data_dir(overrides, data_dir), data, reward, task)
    if gpus is not None:
        asked = [*asked, f"launch.processes={gpus}"]
    speed = _speed(tokens_per_second, run)

    sources = config_sources(config)

    def checked(name: str | None) -> Config:
        found = load_config(sources, name, task, model, asked)
        if not waits_for_a_folder(found.task):
            check_training(found)
        return found

    names = [name.strip() for written in method or [] for name in written.split(",")]

    def needs(settings: Config) -> dict[str, Any]:
        said = cautions(settings)
        if waits_for_a_folder(settings.task):
            # Its numbers do not depend on the problems.
            said.append(
                f"WARNING: `rlvr train` needs the problems of {settings.task.data} (task.data), which are on no hub "
                f"that the project knows: name their folder with --data-dir.{generated_hint(settings.task.sets)}"
            )
        found = resources(settings, gpus=gpus, gpu_memory=gpu_memory, prompt_tokens=prompt_tokens, speed=speed)
        return {**found, "cautions": said}

    if len(names) > 1:
        if probe:
            raise UserError("--probe runs one method's batch: give one --method")
        arms = _arms(names, checked)
        _compare(arms, [needs(arm) for arm in arms], form == "json")
        return
    settings = checked(names[0] if names else None)
    plan = {**plan_training(settings), **needs(settings)}
    measured = None
    if probe:
        from rlvr_cli.training.probe import probe as run_probe

        measured = run_probe(settings)
        plan["probe"] = [asdict(one) for one in measured]
    if form == "json":
        print_json(plan)
        return
    _print_plan(plan)
    echo(f"\n{_data_sentence(plan)}")
    if plan["about_data"]:
        echo(plan["about_data"])
    print_resources(plan)
    for caution in plan["cautions"]:
        echo(f"\n{caution}")
    if measured is not None:
        echo(f"\n{max(measured, key=lambda one: one.peak).sentence(len(measured))}")


def _speed(tokens_per_second: float | None, run: str | None) -> Speed | None:
    """The speed that the time is estimated from; raises UserError where two are given, or RUN has none."""
    from pathlib import Path

    from rlvr_cli.planning.plan import Speed, measured_speed

    if tokens_per_second is not None and run is not None:
        raise UserError("--tokens-per-second and --run both give a speed; give one of them")
    if tokens_per_second is not None:
        return Speed(tokens_per_second, "as given (--tokens-per-second)")
    if run is None:
        return None
    from rlvr_cli.config.load import load_config
    from rlvr_cli.runs.folder import find_run

    return measured_speed(find_run(run, Path(load_config([]).run.dir)))


def _arms(names: Sequence[str], load: Callable[[str], Config]) -> list[Config]:
    """The configuration of each method.

    Raises:
        UserError: every problem of every arm, once; one that some arms do not have says whose it is.
    """
    from rlvr_cli.core.errors import ConfigError

    if not all(names):
        raise UserError(f"--method {','.join(names)}  has an empty name between its commas")
    arms: list[Config] = []
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        try:
            arms.append(load(name))
        except ConfigError as error:
            for problem in error.found:
                found.setdefault(problem, []).append(name)
    if found:
        raise ConfigError([_of_arms(problem, its_arms, names) for problem, its_arms in found.items()])
    resolved = [arm.method.name for arm in arms]
    for name in resolved:
        if resolved.count(name) > 1:
            raise UserError(f"--method {','.join(names)}  names {name} twice; name each once")
    return arms


def _of_arms(problem: tuple[str, str], its_arms: Sequence[str], arms: Sequence[str]) -> tuple[str, str]:
    """A problem that not every arm has, with the names of those that have it, where it does not say so itself."""
    places, message = problem
    named = len(its_arms) == len(arms) or places.startswith("--method")
    return places, message if named else f"{message} (with --method {', '.join(its_arms)})"


def _compare(arms: list[Config], needs: list[dict[str, Any]], as_json: bool) -> None:
    from rlvr_cli.methods.equivalence import same_gradients
    from rlvr_cli.planning.plan import plan_training

    plans = [{**plan_training(arm), **need} for arm, need in zip(arms, needs, strict=True)]
    same = same_gradients(
        {arm.method.name: arm.method for arm in arms}, arms[0].update.mini_batches * arms[0].update.epochs
    )
    if as_json:
        groups = [{"methods": list(group.names), "when": group.when, "note": group.sentence()} for group in same]
        print_json({"arms": plans, "same_gradient": groups})
        return
    # Two names are two methods, so that one of them samples.
    _print_plan(next(plan for plan in plans if plan["policy_age"]), per_method=False)
    echo()
    headings = ("method", "passes", "steps per rollout", "optimizer steps", "updates old, mean", "largest", "memory")
    table = plain_table(*headings)
    for plan in plans:
        ages = plan["policy_age"]
        table.add_row(
            plan["method"],
            str(plan["passes"]),
            f"{plan['steps_per_rollout']:,}",
            f"{plan['steps_total']:,}",
            f"{ages['mean']:g}" if ages else "-",
            f"{ages['largest']:,}" if ages else "-",
            memory_in_short(plan),
        )
    print_table(table)
    for plan in plans:
        if not plan["policy_age"]:
            source = " ".join(part for part in _demonstrations(plan) if part)
            echo(
                f"\n{plan['method']} samples nothing: for each rollout it takes {plan['completions_per_rollout']:,} "
                f"demonstrations ({source})."
            )
    if len({plan["steps_per_rollout"] for plan in plans}) > 1:
        echo("\nAt equal rollouts these methods make different numbers of optimizer steps.")
    if same:
        echo()
    for group in same:
        echo(group.sentence())
    for caution in dict.fromkeys(said for plan in plans for said in plan["cautions"]):
        echo(f"\n{caution}")


def _print_plan(plan: dict[str, Any], *, per_method: bool = True) -> None:
    table = plain_table("", "", "")
    for name, number, meaning in _rows(plan):
        if per_method or name not in PER_METHOD:
            table.add_row(name, number, meaning)
    table.show_header = False
    print_table(table)


# Rows in which methods differ: several of them have a table of their own for these.
PER_METHOD = ("method", "optimizer steps per rollout", "optimizer steps", "checkpoints")


def _forward_passes(plan: dict[str, Any], rows: str) -> tuple[str, str]:
    """How many, and what is in one."""
    if plan["policy_age"] is None:
        return f"{plan['micro_batches_per_step']:,}", f"of {plan['micro_batch']} {rows} (update.micro_batch)"
    if plan["micro_tokens"] is not None:
        return "-", f"of {plan['micro_tokens']:,} tokens (update.micro_tokens); as many as the completions need"
    return (
        "-",
        f"of as many tokens as {plan['micro_batch']} of the longest {rows} have (update.micro_batch); as many as the "
        f"{rows} need",
    )


def _rows(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
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
        ("forward passes per step", *_forward_passes(plan, rows)),
        ("rollouts" if sampled else "batches", number("rollouts"), "the budget (train.rollouts)"),
        ("optimizer steps", number("steps_total"), f"{'rollouts' if sampled else 'batches'} x steps per {batch}"),
        (
            "completions" if sampled else "demonstrations drawn",
            number("completions_total"),
            f"at most {plan['completion_tokens_at_most']:,} tokens{'' if sampled else ' of completions'}",
        ),
        ("training problems", *_problems(plan)) if sampled else ("demonstrations", *_demonstrations(plan)),
        (
            "checkpoints",
            number("checkpoints_written"),
            f"of which the newest {plan['checkpoints_kept']} are kept",
        ),
        (
            "evaluations on the way",
            number("evaluations"),
            _evaluation(plan),
        ),
    ]


def _evaluation(plan: dict[str, Any]) -> str:
    if not plan["eval_benchmarks"]:
        return f"`rlvr eval` samples {plan['eval_completions']:,} completions"
    return f"`rlvr eval` samples {plan['benchmark_completions']:,} completions on {', '.join(plan['eval_benchmarks'])}"


def _problems(plan: dict[str, Any]) -> tuple[str, str]:
    """How many training problems there are, and how often each is seen; of data that are not read, what is certain."""
    source, visits = plan["problems_from"], plan["visits_per_problem"]
    if source is None:
        return f"{plan['problems']:,}", f"each seen {visits:.2f} times on average"
    return f"at most {plan['problems']:,}", f"of {source} (task.data), each seen {visits:.2f} times or more on average"


def _demonstrations(plan: dict[str, Any]) -> tuple[str, str]:
    """How many demonstrations there are, where that is known, and where they come from."""
    if plan["data"] is not None:
        return "", f"the rows of {plan['data']} (method.data)"
    visits = plan["visits_per_demonstration"]
    return f"{plan['demonstrations']:,}", f"worked solutions of the task, each drawn {visits:.2f} times on average"


def _data_sentence(plan: dict[str, Any]) -> str:
    ages = plan["policy_age"]
    if ages is None:
        return "Imitation: training samples nothing, so there is no ratio, and no data grow old."
    if ages["largest"] == 0:
        return "On-policy: each rollout batch makes one optimizer step, so every ratio is 1 and no clip acts."
    return (
        f"Off-policy: the data of a rollout are {ages['mean']:g} updates old on average when they are used, "
        f"{ages['largest']} at most (the first step of each rollout is on-policy)."
    )


MOST_CHANGES = 5


def print_resources(plan: dict[str, Any]) -> None:
    """Print what :func:`rlvr_cli.planning.plan.resources` found."""
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
    from rlvr_cli.core.text import duration_in_words

    time, sampled = plan["time"], plan["policy_age"] is not None
    if time is None:
        return (
            f"Time: not known without a speed. --run RUN takes it from a run; --tokens-per-second X gives "
            f"{'completion' if sampled else 'demonstration'} tokens a second."
        )
    expected = time["seconds_expected"]
    usual = (
        ""
        if expected is None
        else f"{duration_in_words(expected)} at {time['tokens_per_completion']:.0f} tokens each, "
    )
    return (
        f"Time: {usual}{duration_in_words(time['seconds_at_most'])} if every completion has the full length, at "
        f"{time['tokens_per_second']:,.0f} tokens a second ({time['source']})."
    )
