"""What one evaluation samples and reports. Imports no torch, so that bad settings are refused at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.schema import Config
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


def row_key(problem_id: str, sample: int | str) -> int:
    """The random stream of one sample: 63 bits that depend on the problem and the sample's index alone."""
    return int.from_bytes(hashlib.sha256(f"{problem_id}/{sample}".encode()).digest()[:8], "big") >> 1
