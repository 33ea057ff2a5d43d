"""What one evaluation samples and reports, and the keys of a configuration that it reads. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.evaluation import EvalConfig, HeldOutConfig, ValidationConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.layers import OptionOverride, typed
from rlvr_cli.tasks.base import HELD_OUT_SEED
from rlvr_cli.tasks.problem import DataSplit

BATCH = 256
_DEFAULTS = HeldOutConfig()


@dataclass(frozen=True)
class EvalSettings:
    """How an evaluation samples. ``samples`` completions a problem, and one greedy completion more if ``greedy``.

    Without samples the greedy completion is all there is, and there is no k.

    ``seed`` names the random streams of the samples; ``problems_seed`` draws the held-out set, which is the same for
    every run. ``batch`` and ``engine`` change speed and memory, not which samples are requested; without a ``batch``
    256 samples are kept at a time, and as many are made at once as memory holds of them.
    """

    problems: int = _DEFAULTS.problems
    samples: int = _DEFAULTS.samples
    pass_at: tuple[int, ...] = _DEFAULTS.reported_ks
    temperature: float = _DEFAULTS.temperature
    top_p: float = _DEFAULTS.top_p
    max_new_tokens: int = 1024
    greedy: bool = _DEFAULTS.greedy
    split: DataSplit = _DEFAULTS.split
    batch: int | None = None
    engine: str = "auto"
    seed: int = 0
    problems_seed: int = HELD_OUT_SEED

    def __post_init__(self) -> None:
        if bool(self.pass_at) != bool(self.samples) or not all(1 <= k <= self.samples for k in self.pass_at):
            raise ValueError(
                f"pass_at={self.pass_at}: with samples={self.samples} there is at least one k, and each is from 1 to "
                "that number; without samples there is none."
            )
        if self.samples == 0 and not self.greedy:
            raise ValueError("nothing is sampled: without samples, the greedy completion is needed.")

    @property
    def kept_at_once(self) -> int:
        """Samples of a process that are on the disk before the next ones are begun."""
        return self.batch or BATCH

    @classmethod
    def from_config(
        cls, config: Config, section: EvalConfig | ValidationConfig | None = None, **changes: Any
    ) -> EvalSettings:
        """Return the settings of ``section`` (None = `eval`), with ``changes`` on top; raise ValueError."""
        section = section or config.eval
        values = {name: getattr(section, name) for name in HeldOutConfig.model_fields}
        values |= {"samples": section.samples_needed, "pass_at": section.reported_ks}
        values["engine"] = engine_of(config, section)
        values["max_new_tokens"] = section.max_new_tokens or config.rollout.max_new_tokens
        return cls(**{**values, **changes})

    @classmethod
    def in_training(cls, config: Config) -> EvalSettings:
        """Return the settings of the evaluations during training; of generated problems the dev split is taken."""
        split = "dev" if config.task.is_generated else config.validation.split
        return cls.from_config(config, config.validation, split=split)

    def sampling(self) -> dict[str, Any]:
        """The settings that decide what a given sample of a given problem is."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
        }


def engine_of(config: Config, section: EvalConfig | ValidationConfig) -> str:
    """Return what samples: the engine of ``section``; for `auto` rollout.engine where it is one of this process."""
    engine, of_rollouts = section.engine, config.rollout.engine
    return of_rollouts if engine == "auto" and of_rollouts in ("local", "transformers") else engine


# What an evaluation reads of the configuration, next to `eval` and `task`.
_READ = frozenset(
    (
        *("model.revision", "model.dtype", "model.attention", "rollout.engine", "rollout.max_new_tokens"),
        *("run.dir", "run.threads"),
    )
)
_TRAINING_ONLY = frozenset(("task.train_size", "track.completions_every", "track.completions"))
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
    if section in ("rollout", "validation") and name in EvalConfig.model_fields:
        return f"an evaluation reads eval.{name}"
    return "remove it"


def idle_override(text: str, config: Config) -> str | None:
    """Return what is wrong with an override of a call that changes nothing in an evaluation by ``config``."""
    key = text.partition("=")[0]
    why = idle_key(key)
    if why is None and config.eval.engine != "openai" and key in _SERVER_ONLY:
        why = "it is for a server. Use --engine openai too"
    elif why is None and config.eval.engine == "openai" and key in _NOT_OF_A_SERVER:
        why = "the server decides it"
    elif key == "rollout.max_new_tokens" and config.eval.max_new_tokens is not None:
        why = f"eval.max_new_tokens={config.eval.max_new_tokens} decides. Use --max-new-tokens"
    elif key == "rollout.engine" and engine_of(config, config.eval) != config.rollout.engine:
        why = "an evaluation reads eval.engine (--engine)"
    return f"{typed(text)}: has no effect in an evaluation; {why}." if why is not None else None


def idle_without_samples(overrides: Sequence[str]) -> str:
    """Return a note where this call sets how samples are drawn, and the greedy completion is all that is asked for."""
    keys = ("eval.temperature", "eval.top_p")
    given = [name for key in keys if (name := asked_by(overrides, key))]
    return f"greedy completions only, so {' and '.join(given)} changes nothing" if given else ""


def asked_by(overrides: Sequence[str], *keys: str) -> str | None:
    """Return the option or the key by which a call sets one of ``keys``, the last one; None where it does not."""
    override = next((text for text in reversed(overrides) if text.partition("=")[0] in keys), None)
    return (
        override.typed.split()[0] if isinstance(override, OptionOverride) else override and override.partition("=")[0]
    )


def only(overrides: Sequence[str], prefix: str) -> list[str]:
    """Return the overrides that begin so."""
    return [override for override in overrides if override.startswith(prefix)]
