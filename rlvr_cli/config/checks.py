"""Cross-field rules, whose messages give the nearest valid values, and warnings about harmful settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import gcd

from rlvr_cli.config.batch import nearest_divisors, nearest_multiples
from rlvr_cli.config.rollout import VllmConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.layers import SetByUser
from rlvr_cli.core.section import Contradiction
from rlvr_cli.methods.checks import check_user_parts
from rlvr_cli.methods.opd import check_teacher
from rlvr_cli.tasks.sets import check_problems, data_sets, set_names
from rlvr_cli.tasks.suites import unknown_name_errors

ENGINE = "rollout.engine"


def cross_field_problems(config: Config, set_by_user: SetByUser) -> list[Contradiction]:
    """Return conflicts between valid values of different keys, and keys set by the user without effect."""
    unknown = unknown_name_errors(config.eval.benchmark, "eval.benchmark")
    return [
        *(problem for check in _CHECKS for problem in check(config)),
        *(Contradiction(("eval.benchmark",), message) for message in unknown),
        *config.task.contradictions(),
        *config.method.contradictions(),
        *_unused_keys(config, set_by_user),
    ]


def check_training(config: Config) -> None:
    """Check that a training has problems and a working method, tried on synthetic tokens. Raises UserError."""
    if config.method.policy is not None:
        check_teacher(config.method.name, config.method.policy.advantage)
    check_user_parts(config.method)
    if config.method.needs_problems:
        check_problems(config.task, ("train", *([config.validation.split] if config.validation.every else ())))
        config.task.check_requirements()


def _join_or(values: Iterable[int]) -> str:
    return " or ".join(map(str, values))


def _updates_split_the_rollout(config: Config) -> Iterable[Contradiction]:
    prompts, group_size = config.rollout.prompts, config.rollout.group_size
    updates, completions = config.update.mini_batches, prompts * group_size
    if completions < 2:
        yield Contradiction(
            ("rollout.prompts", "rollout.group_size"),
            "rollout.prompts=1 x group_size=1: a rollout needs at least two completions",
        )
    if completions % updates:
        more_prompts = nearest_multiples(updates // gcd(updates, group_size), prompts)
        yield Contradiction(
            ("rollout.prompts", "rollout.group_size", "update.mini_batches"),
            f"rollout.prompts={prompts} x group_size={group_size} = {completions} completions do not split "
            f"into update.mini_batches={updates} equal parts. "
            f"Nearest valid: prompts {_join_or(more_prompts)}; "
            f"mini_batches {_join_or(nearest_divisors(completions, updates))}",
        )


def _processes_share_the_step(config: Config) -> Iterable[Contradiction]:
    prompts, group_size = config.rollout.prompts, config.rollout.group_size
    updates, processes = config.update.mini_batches, config.launch.processes
    step_batch, rest = divmod(prompts * group_size, updates)
    if rest == 0 and step_batch % processes:
        shares = updates * processes
        more_prompts = nearest_multiples(shares // gcd(shares, group_size), prompts)
        yield Contradiction(
            ("launch.processes", "rollout.prompts", "rollout.group_size", "update.mini_batches"),
            f"launch.processes={processes} cannot share the {step_batch} completions of an optimizer step (prompts x "
            f"group_size / mini_batches) equally. Nearest valid: processes "
            f"{_join_or(nearest_divisors(step_batch, processes))}; prompts {_join_or(more_prompts)}",
        )


def _micro_batches_split_the_step(config: Config) -> Iterable[Contradiction]:
    completions, processes = config.rollout.prompts * config.rollout.group_size, config.launch.processes
    updates, micro_batch = config.update.mini_batches, config.update.micro_batch
    if micro_batch is None or completions % (updates * processes):
        return
    share = completions // updates // processes
    if share % micro_batch:
        each = f" in each of launch.processes={processes}" if processes > 1 else ""
        yield Contradiction(
            ("update.micro_batch", "rollout.prompts", "rollout.group_size", "update.mini_batches")
            + (("launch.processes",) if processes > 1 else ()),
            f"update.micro_batch={micro_batch} does not divide the {share} completions of an "
            f"optimizer step (prompts x group_size / mini_batches){each}. "
            f"Nearest valid: {_join_or(nearest_divisors(share, micro_batch))}",
        )


def _deepspeed_divides_the_model(config: Config) -> Iterable[Contradiction]:
    if config.launch.deepspeed is None:
        return
    if config.model.adapter.kind == "qlora":
        yield Contradiction(
            ("model.adapter", "launch.deepspeed"),
            "model.adapter=qlora keeps the weights in 4 bits, and launch.deepspeed shards trainable weights. Set "
            "model.adapter=lora, or remove launch.deepspeed: in 4 bits every process holds the whole model",
        )
    if config.method.needs_values:
        yield Contradiction(
            ("method", "launch.deepspeed"),
            f"method {config.method.name} trains a value head, whose gradient DeepSpeed would clip with the policy's. "
            "Remove launch.deepspeed: every process then holds the whole model",
        )
    if config.rollout.behind:
        yield Contradiction(
            ("rollout.behind", "launch.deepspeed"),
            f"rollout.behind={config.rollout.behind} keeps earlier weights of the whole model in every process, and "
            f"launch.deepspeed={config.launch.deepspeed} shards them. Remove one",
        )


def _evaluations_sample(config: Config) -> Iterable[Contradiction]:
    for name, section in (("validation", config.validation), ("eval", config.eval)):
        if section.samples_needed == 0 and not section.greedy:
            yield Contradiction(
                (f"{name}.samples", f"{name}.greedy"),
                f"{name}.samples=0 leaves only the greedy completion, and {name}.greedy=false removes that too. Set "
                "one of them",
            )


def _data_set_of_the_task(config: Config) -> Iterable[Contradiction]:
    name, task = config.task.data, config.task.name
    if name in data_sets() and data_sets()[name].task != task:
        names = ", ".join(set_names(task))
        yield Contradiction(
            ("task.data", "task.name"),
            f"task.data={name}: is a data set of the task {data_sets()[name].task}, and the task is {task}. Set "
            f"task={data_sets()[name].task}, or a data set of {task}: {names}. (A folder of that name is ./{name}.)",
        )


def _warmup_within_training(config: Config) -> Iterable[Contradiction]:
    warmup, rollouts = config.optimizer.warmup_rollouts, config.train.rollouts
    if warmup >= rollouts:
        yield Contradiction(
            ("optimizer.warmup_rollouts", "train.rollouts"),
            f"optimizer.warmup_rollouts={warmup} is not below train.rollouts={rollouts}: the learning rate "
            f"would never reach its peak. Largest valid: {rollouts - 1}",
        )


def _groups_of_one(config: Config) -> Iterable[Contradiction]:
    """Refuse groups of one, for which verl keeps the raw reward: a different method under the same name."""
    rollout, policy = config.rollout, config.method.policy
    if rollout.group_size > 1 or policy is None:
        return
    needs = [component.needs_group for component in policy.parts if component.needs_group is not None]
    if rollout.dynamic_sampling:
        key = "rollout.dynamic_sampling"
        needs.append((key, f"{key}={rollout.dynamic_sampling} replaces groups whose rewards are all equal"))
    if config.train.curriculum < 1:
        key = "train.curriculum"
        needs.append((key, f"{key}={config.train.curriculum:g} compares the verdicts of a problem's completions"))
    for key, reason in needs:
        remedy = "use an advantage without groups (method.advantage=reinforce_pp, remax, likelihood or gae)"
        if key != "method.advantage.kind":
            remedy = "set it to none" if key == "method.advantage.baseline" else f"remove {key}"
        yield Contradiction(
            (key, "rollout.group_size"),
            f"{reason}, and rollout.group_size=1 leaves nothing to compare. Set rollout.group_size to 2 or more, or "
            f"{remedy}",
        )


def _groups_are_large_enough(config: Config) -> Iterable[Contradiction]:
    policy, size = config.method.policy, config.rollout.group_size
    least, key = (1, "") if policy is None else policy.advantage.least_group
    if 1 < size < least:
        yield Contradiction(
            (key, "rollout.group_size"),
            f"{key}={least - 1} needs rollout.group_size={least} or more, since no smaller group has a gradient; got "
            f"{size}. Largest valid: {key}={size - 1}",
        )


def _rewards_of_a_method(config: Config) -> Iterable[Contradiction]:
    method, rollout = config.method.policy, config.rollout
    if method is None:
        return
    if rollout.dynamic_sampling and method.reward.source == "entropy_min":
        yield Contradiction(
            ("rollout.dynamic_sampling", "method.reward.source"),
            f"rollout.dynamic_sampling={rollout.dynamic_sampling} (judges groups by the verifier's rewards) and "
            "method.reward.source=entropy_min (trains on others) cannot be combined. Remove one",
        )
    if rollout.drop_truncated and method.reward.length.kind != "none":
        yield Contradiction(
            ("rollout.drop_truncated", "method.reward.length"),
            "rollout.drop_truncated=true leaves out the completions that "
            f"method.reward.length={method.reward.length.kind} is about. Remove one",
        )
    if rollout.dynamic_sampling and not method.advantage.needs_rewards:
        yield Contradiction(
            ("rollout.dynamic_sampling", "method.advantage.kind"),
            f"rollout.dynamic_sampling={rollout.dynamic_sampling} replaces groups whose rewards are all equal, and "
            f"method.advantage.kind={method.advantage.kind_name} reads no reward. Remove rollout.dynamic_sampling, or "
            "set method.advantage.reward_weight above 0",
        )


def _unused_keys(config: Config, set_by_user: SetByUser) -> Iterable[Contradiction]:
    for key, switch, reason in (*config.method.unused(), *_unused_vllm_keys(config)):
        path = tuple(key.split("."))
        section = reduce(getattr, path[:-1], config)
        value = getattr(section, path[-1])
        default = type(section).model_fields[path[-1]].get_default(call_default_factory=True)
        if set_by_user(path) and value != default:
            keys = (key, switch) if set_by_user(tuple(switch.split("."))) else (key,)
            text = (
                str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
            )
            yield Contradiction(keys, f"{key}={text} has no effect: {reason}")


def _vllm_can_sample(config: Config) -> Iterable[Contradiction]:
    rollout, processes = config.rollout, config.launch.processes
    if not rollout.uses_vllm:
        return
    if not config.method.samples:
        yield Contradiction(
            (ENGINE, "method.name"),
            f"{ENGINE}={rollout.engine} samples completions, and method.name={config.method.name} trains on worked "
            "solutions. Remove rollout.engine",
        )
    if rollout.temperature != 1 and rollout.limits:
        limits = list(rollout.limits)
        # The local sampler has no such arguments.
        local = "" if rollout.generation_kwargs else f", or set {ENGINE}=local"
        yield Contradiction(
            ("rollout.temperature", *(f"rollout.{key}" for key in limits), ENGINE),
            f"rollout.temperature={rollout.temperature:g} with rollout.{limits[0]}: vLLM gives log-probabilities "
            "before the temperature or after the cut; the gradient needs those after the temperature, before the cut. "
            f"Set rollout.temperature=1, or remove {' and '.join(limits)}{local}",
        )
    if rollout.engine == "vllm_server" and rollout.vllm.server is None:
        yield Contradiction(
            (ENGINE, "rollout.vllm.server"),
            f"{ENGINE}=vllm_server needs the server's address: rollout.vllm.server=http://localhost:8000",
        )
    parallel = rollout.vllm.tensor_parallel
    if processes % parallel:
        yield Contradiction(
            ("rollout.vllm.tensor_parallel", "launch.processes", ENGINE),
            f"rollout.vllm.tensor_parallel={parallel} does not divide launch.processes={processes}: with "
            "vllm_colocate the training processes share the model among them",
        )


# Keys of transformers and vLLM with a key here, or fixed ("").
_GENERATION_KEYS = {
    **{key: f"rollout.{key}" for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")},
    **dict.fromkeys(("max_new_tokens", "max_tokens", "max_length"), "rollout.max_new_tokens"),
    **dict.fromkeys(("n", "num_return_sequences"), "rollout.group_size"),
    **dict.fromkeys(("stop_strings", "include_stop_str_in_output"), "rollout.stop"),
    "seed": "run.seed",
    **dict.fromkeys(("do_sample", "num_beams", "pad_token_id", "eos_token_id", "stop_token_ids", "ignore_eos"), ""),
    **dict.fromkeys(("logprobs", "prompt_logprobs", "detokenize", "skip_special_tokens", "output_kind"), ""),
    **dict.fromkeys(("return_dict_in_generate", "output_scores", "output_logits", "max_time"), ""),
}


def _generation_kwargs(config: Config) -> Iterable[Contradiction]:
    rollout = config.rollout
    if rollout.generation_kwargs and rollout.engine in ("auto", "local"):
        yield Contradiction(
            ("rollout.generation_kwargs", ENGINE),
            f"rollout.generation_kwargs are arguments of transformers or vLLM, and {ENGINE}={rollout.engine} is the "
            f"local sampler. Set {ENGINE}=transformers, or vllm_colocate or vllm_server",
        )
    for key in rollout.generation_kwargs:
        if key in _GENERATION_KEYS:
            remedy = f"Set {_GENERATION_KEYS[key]}" if _GENERATION_KEYS[key] else "Remove it: rlvr decides it"
            yield Contradiction(("rollout.generation_kwargs",), f"rollout.generation_kwargs has {key}. {remedy}")


def _unused_vllm_keys(config: Config) -> Iterable[tuple[str, str, str]]:
    for name in VllmConfig.model_fields:
        engine = "vllm_server" if name == "server" else "vllm_colocate"
        if config.rollout.engine != engine:
            reason = f"{ENGINE}={config.rollout.engine} does not use it. Set {ENGINE}={engine}"
            yield f"rollout.vllm.{name}", ENGINE, reason


_CHECKS: tuple[Callable[[Config], Iterable[Contradiction]], ...] = (
    _updates_split_the_rollout,
    _processes_share_the_step,
    _micro_batches_split_the_step,
    _deepspeed_divides_the_model,
    _evaluations_sample,
    _data_set_of_the_task,
    _warmup_within_training,
    _groups_of_one,
    _groups_are_large_enough,
    _rewards_of_a_method,
    _vllm_can_sample,
    _generation_kwargs,
)


def config_warnings(config: Config) -> list[str]:
    """Return warnings about allowed but harmful settings, for `rlvr plan` and the start of a training."""
    return [*_warn_of_lost_steps(config), *_warn_of_biased_samples(config)]


def _warn_of_lost_steps(config: Config) -> list[str]:
    """Warn of bfloat16 weights; DeepSpeed keeps a float32 copy, and adapters are float32."""
    if config.model.dtype != "bfloat16" or config.model.adapter.kind != "none" or config.launch.deepspeed is not None:
        return []
    return [
        "WARNING: model.dtype=bfloat16 trains weights that are bfloat16 themselves: near 0.01 its numbers are 0.00006 "
        "apart, and an optimizer step of the usual learning rates (1e-6) is lost in rounding. model.dtype=auto keeps "
        "float32 weights, and computes in bfloat16 on a GPU."
    ]


def _warn_of_biased_samples(config: Config) -> list[str]:
    limits = [
        f"rollout.{key}={f'{value:g}' if isinstance(value, float) else value}"
        for key, value in config.rollout.limits.items()
    ]
    if not config.method.samples or not limits:
        return []
    verb = "sample" if len(limits) > 1 else "samples"
    others = {"repetition_penalty", "generation_kwargs"} & config.rollout.limits.keys()
    source = "another distribution than the model's" if others else "the likeliest tokens alone"
    return [
        f"WARNING: {' and '.join(limits)} {verb} from {source}, and the gradient takes the samples "
        "for those of the whole distribution, of which every probability and ratio is: it is biased. "
        f"Samples without {'them' if len(limits) > 1 else 'it'} are unbiased."
    ]
