"""The settings of an evaluation, and the configuration keys that have an effect on it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.evaluation import EvalConfig, HeldOutConfig, ValidationConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.layers import OptionOverride, as_typed
from rlvr_cli.tasks.base import HELD_OUT_SEED
from rlvr_cli.tasks.problem import DataSplit

BATCH = 256
_DEFAULTS = HeldOutConfig()


@dataclass(frozen=True)
class EvalSettings:
    """The problems, samples and metrics of an evaluation.

    Attributes:
        samples: completions per problem, besides the ``greedy`` one; 0 = greedy completions alone, without ``pass_at``.
        batch: completions that a process samples at once; None = 256, or fewer by its free memory. Like ``engine``, it
            does not change which samples are requested.
        seed: of the samples' random streams. problems_seed: of the held-out set, the same for every run.
    """

    problems: int = _DEFAULTS.problems
    samples: int = _DEFAULTS.samples
    pass_at: tuple[int, ...] = _DEFAULTS.reported_ks
    temperature: float = _DEFAULTS.temperature
    top_p: float = _DEFAULTS.top_p
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 1024
    greedy: bool = _DEFAULTS.greedy
    split: DataSplit = _DEFAULTS.split
    batch: int | None = None
    engine: str = "auto"
    seed: int = 0
    problems_seed: int = HELD_OUT_SEED

    @property
    def chunk_size(self) -> int:
        """Return the number of samples that a process writes to disk at a time."""
        return self.batch or BATCH

    @classmethod
    def from_config(
        cls, config: Config, section: EvalConfig | ValidationConfig | None = None, **changes: Any
    ) -> EvalSettings:
        """Return the settings of ``section`` (None = `eval`), with ``changes`` on top."""
        section = section or config.eval
        values = {name: getattr(section, name) for name in HeldOutConfig.model_fields}
        values |= {"samples": section.samples_needed, "pass_at": section.reported_ks}
        values["engine"] = engine_of(config, section)
        values["stop"] = config.rollout.stop if section.stop is None else section.stop
        values["max_new_tokens"] = section.max_new_tokens or config.rollout.max_new_tokens
        return cls(**{**values, **changes})

    @classmethod
    def in_training(cls, config: Config) -> EvalSettings:
        """Return the settings of the evaluations during training; of generated problems the dev split is taken."""
        split = "dev" if config.task.is_generated else config.validation.split
        return cls.from_config(config, config.validation, split=split)

    def sampling(self) -> dict[str, Any]:
        """Return the settings that determine a sample of a problem."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            **({"stop": list(self.stop)} if self.stop else {}),
        }


def engine_of(config: Config, section: EvalConfig | ValidationConfig) -> str:
    """Return the engine of ``section``; for `auto`, rollout.engine if it is local or transformers."""
    engine, rollout_engine = section.engine, config.rollout.engine
    return rollout_engine if engine == "auto" and rollout_engine in ("local", "transformers") else engine


# Keys that an evaluation reads besides those of `eval`, `task` and `track`.
_READ = frozenset(
    (
        *("model.revision", "model.dtype", "model.attention", "rollout.engine", "rollout.max_new_tokens"),
        *("rollout.stop", "run.dir", "run.threads"),
    )
)
_TRAINING_ONLY = frozenset(("task.train_size", "track.completions_every", "track.completions"))
_SERVER_ONLY = frozenset(
    (
        *("eval.base_url", "eval.model_name", "eval.server", "eval.endpoint", "eval.concurrency", "eval.retries"),
        *("eval.request_timeout", "eval.api_key_variable"),
    )
)
_SET_BY_SERVER = frozenset(("eval.batch", "model.dtype", "model.attention", "run.threads"))


def unused_key_reason(key: str) -> str | None:
    """Return why an evaluation does not read ``key``, and the remedy; None if it does."""
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


def unused_override_message(override: str, config: Config) -> str | None:
    """Return the error message for an override without effect on an evaluation by ``config``; else None."""
    key = override.partition("=")[0]
    reason = unused_key_reason(key)
    if reason is None and config.eval.engine != "openai" and key in _SERVER_ONLY:
        reason = "it is for a server. Use --engine openai too"
    elif reason is None and config.eval.engine == "openai" and key in _SET_BY_SERVER:
        reason = "it is set at the server"
    elif key == "rollout.max_new_tokens" and config.eval.max_new_tokens is not None:
        reason = f"eval.max_new_tokens={config.eval.max_new_tokens} overrides it. Use --max-new-tokens"
    elif key == "rollout.stop" and config.eval.stop is not None:
        reason = "eval.stop overrides it"
    elif key == "rollout.engine" and engine_of(config, config.eval) != config.rollout.engine:
        reason = "an evaluation reads eval.engine (--engine)"
    return f"{as_typed(override)}: has no effect in an evaluation; {reason}." if reason is not None else None


def greedy_only_note(overrides: Sequence[str]) -> str:
    """Return a note if the temperature or top_p is set for greedy completions alone, else ""."""
    options = [option for key in ("eval.temperature", "eval.top_p") if (option := find_option(overrides, key))]
    return f"greedy completions only, so {' and '.join(options)} has no effect" if options else ""


def find_option(overrides: Sequence[str], *keys: str) -> str | None:
    """Return the option or key, as typed, of the last override of one of ``keys``; None without one."""
    override = next((text for text in reversed(overrides) if text.partition("=")[0] in keys), None)
    return (
        override.typed.split()[0] if isinstance(override, OptionOverride) else override and override.partition("=")[0]
    )


def filter_overrides(overrides: Sequence[str], prefix: str) -> list[str]:
    return [override for override in overrides if override.startswith(prefix)]
