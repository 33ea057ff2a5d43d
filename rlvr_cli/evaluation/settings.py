"""What one evaluation samples and reports, and the keys of a configuration that it reads. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.schema import Config, EvalConfig
from rlvr_cli.core.layers import OptionOverride, typed
from rlvr_cli.tasks.base import HELD_OUT_SEED

BATCH = 256


@dataclass(frozen=True)
class EvalSettings:
    """How an evaluation samples. ``samples`` completions a problem, and one greedy completion more if ``greedy``.

    Without samples the greedy completion is all there is, and there is no k.

    ``seed`` names the random streams of the samples; ``problems_seed`` draws the held-out set, which is the same for
    every run. ``batch`` and ``engine`` change speed and memory, not which samples are asked for; without a ``batch``
    256 samples are kept at a time, and as many are made at once as memory holds of them.
    """

    problems: int = 420
    samples: int = 32
    pass_at: tuple[int, ...] = (1, 8, 32)
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 1024
    greedy: bool = True
    split: str = "test"
    batch: int | None = None
    engine: str = "auto"
    seed: int = 0
    problems_seed: int = HELD_OUT_SEED

    def __post_init__(self) -> None:
        problems = pass_at_problems(self.pass_at, self.samples)
        if self.samples == 0 and not self.greedy:
            problems.append("nothing is sampled: without samples, the greedy completion is needed.")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def kept_at_once(self) -> int:
        """Samples of a process that are on the disk before the next ones are begun."""
        return self.batch or BATCH

    @classmethod
    def from_config(cls, config: Config, **changes: Any) -> EvalSettings:
        """The settings of ``config``'s ``eval`` section, with ``changes`` on top. Raises ValueError as the class."""
        values: dict[str, Any] = {
            "problems": config.eval.problems,
            "samples": config.eval.samples,
            "pass_at": config.eval.pass_at if config.eval.samples else (),
            "temperature": config.eval.temperature,
            "top_p": config.eval.top_p,
            "max_new_tokens": config.eval.max_new_tokens or config.rollout.max_new_tokens,
            "greedy": config.eval.greedy,
            "split": config.eval.split,
            "batch": config.eval.batch,
            "engine": engine_of(config),
        }
        return cls(**{**values, **changes})

    def sampling(self) -> dict[str, Any]:
        """The settings that decide what a given sample of a given problem is."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
        }


def engine_of(config: Config) -> str:
    """What samples in an evaluation: eval.engine; for `auto` rollout.engine where it is one of this process."""
    if config.eval.engine == "auto" and config.rollout.engine in ("local", "transformers"):
        return config.rollout.engine
    return config.eval.engine


def pass_at_problems(pass_at: tuple[int, ...], samples: int) -> list[str]:
    """What is wrong with asking for these k with so many samples; empty when nothing is."""
    problems = [f"pass@{k}: k must be at least 1." for k in pass_at if k < 1]
    above = sorted({k for k in pass_at if k > samples})
    if above:
        listed = ", ".join(f"pass@{k}" for k in above)
        problems.append(
            f"{listed}: the greedy completion alone is asked for. Give --samples {max(above)}."
            if samples == 0
            else f"{listed}: only {samples} samples a problem are asked for, and pass@k needs at least k. "
            f"Give --samples {max(above)}, or a smaller k."
        )
    if not pass_at and samples:
        problems.append("no k is given: name at least one, as in --pass-at 1,8,32.")
    return problems


# What an evaluation reads of the configuration, next to `eval` and `task`.
_READ = frozenset(
    (
        *("model.revision", "model.dtype", "model.attention", "rollout.engine", "rollout.max_new_tokens"),
        *("run.dir", "run.threads"),
    )
)
_TRAINING_ONLY = frozenset(("eval.every", "task.train_size", "track.completions_every", "track.completions"))
_SERVER_ONLY = frozenset(
    (
        *("eval.base_url", "eval.model_name", "eval.server", "eval.endpoint", "eval.concurrency", "eval.retries"),
        *("eval.request_timeout", "eval.api_key_variable"),
    )
)
_NOT_OF_A_SERVER = frozenset(("eval.batch", "model.dtype", "model.attention", "run.threads"))


def idle_key(key: str) -> str | None:
    """Return why an evaluation does not read the existing ``key``, and what to do; None where it does."""
    section, _, name = key.partition(".")
    if key in _READ or (section in ("eval", "task", "track") and key not in _TRAINING_ONLY):
        return None
    if key == "model.name":
        return "the model is named as the first argument: rlvr eval MODEL"
    if key == "run.seed":
        return "the seed of the samples is --seed"
    if section == "rollout" and name in EvalConfig.model_fields:
        return f"an evaluation reads eval.{name}"
    return "an evaluation does not read it"


def idle_override(text: str, config: Config) -> str | None:
    """Return what is wrong with an override of a call that changes nothing in an evaluation by ``config``."""
    key = text.partition("=")[0]
    why = idle_key(key)
    if why is None and config.eval.engine != "openai" and key in _SERVER_ONLY:
        why = "it is for a server. Give --engine openai too"
    elif why is None and config.eval.engine == "openai" and key in _NOT_OF_A_SERVER:
        why = "the server decides it"
    elif key == "rollout.max_new_tokens" and config.eval.max_new_tokens is not None:
        why = f"eval.max_new_tokens={config.eval.max_new_tokens} decides. Give --max-new-tokens"
    elif key == "rollout.engine" and engine_of(config) != config.rollout.engine:
        why = "an evaluation reads eval.engine (--engine)"
    return f"{typed(text)}: has no effect in an evaluation; {why}." if why is not None else None


def idle_without_samples(overrides: Sequence[str]) -> str:
    """Return a note where this call sets how samples are drawn, and the greedy completion is all that is asked for."""
    keys = ("eval.temperature", "eval.top_p")
    given = [name for key in keys if (name := asked_by(overrides, key))]
    return f"greedy completions only, so {' and '.join(given)} changes nothing" if given else ""


def asked_by(overrides: Sequence[str], key: str) -> str | None:
    """Return the option or the key by which a call sets ``key``; None where it does not."""
    given = next((text for text in reversed(overrides) if text.partition("=")[0] == key), None)
    return given.typed.split()[0] if isinstance(given, OptionOverride) else key if given is not None else None


def only(overrides: Sequence[str], prefix: str) -> list[str]:
    """Return the overrides that begin so."""
    return [override for override in overrides if override.startswith(prefix)]
