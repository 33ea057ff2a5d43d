"""The sections `validation` and `eval`: the held-out evaluations during a training, and those of `rlvr eval`."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from rlvr_cli.config.rollout import Temperature, TopP
from rlvr_cli.core.section import Count, CountOrZero, FromList, OneOrMore, Section, Text

USUAL_KS = (1, 8, 32)


def _without_secrets(value: str) -> str:
    """Refuse an address with a user name, password, query or fragment; other faults are reported on use."""
    try:
        address = urlsplit(value)
    except ValueError:
        return value
    if "@" in value or address.query or address.fragment:
        # Not repeated in the message: it may hold the key.
        raise ValueError(
            "holds a user name, a password or a query, which would be stored with the results. Set the plain address, "
            "and the key in OPENAI_API_KEY (or the variable of eval.api_key_variable)"
        )
    return value


class HeldOutConfig(Section):
    """Held-out problems, and how they are sampled: the keys of both sections."""

    problems: Count = Field(420, description="Held-out problems.")
    samples: CountOrZero = Field(
        32,
        description="Completions sampled per problem, raised to the largest k of pass_at; 0 = only the greedy "
        "completion.",
    )
    pass_at: Annotated[tuple[Count, ...], FromList] = Field(
        (), description="The k of the reported pass@k; [] = 1, 8 and 32, up to samples."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature in evaluation.")
    top_p: TopP = Field(1.0, description="Nucleus sampling in evaluation.")
    max_new_tokens: Count | None = Field(None, description="Longest completion; null = rollout.max_new_tokens.")
    greedy: bool = Field(True, description="Also report greedy accuracy (one more completion per problem).")
    split: Literal["dev", "test"] = Field("test", description="Held-out split: choose settings on dev, report on test.")
    batch: Count | None = Field(
        None,
        description="Completions that a process samples concurrently; null = 256, or what fits in its free memory "
        "(local). Changes speed and memory, but not the samples (except those of transformers).",
    )

    @property
    def samples_needed(self) -> int:
        """Return the number of samples of each problem."""
        return max((self.samples, *self.pass_at))

    @property
    def reported_ks(self) -> tuple[int, ...]:
        """Return every k of pass@k, each once; none where only the greedy completion is sampled."""
        return tuple(dict.fromkeys(self.pass_at)) or tuple(k for k in USUAL_KS if k <= self.samples)


class ValidationConfig(HeldOutConfig):
    """Evaluation on held-out problems during training."""

    every: CountOrZero = Field(
        0, description="Rollouts between evaluations during training, on the dev split of generated problems; 0 = none."
    )
    engine: Literal["auto", "local", "transformers"] = Field(
        "auto",
        description="Sampler: local = the project's sampler, transformers = `generate`; auto = rollout.engine if "
        "it is one of them, else local where the architecture is supported.",
    )


class EvalConfig(HeldOutConfig):
    """Evaluation on held-out problems by `rlvr eval`."""

    benchmark: Annotated[tuple[Text, ...], OneOrMore] = Field(
        (),
        description="Benchmarks or suites for `rlvr eval RUN` without --benchmark; [] = the run's task. Not used in "
        "training.",
    )
    engine: Literal["auto", "local", "transformers", "vllm", "openai"] = Field(
        "auto",
        description="Sampler: local = the project's sampler, transformers = `generate`, vllm = vLLM in this "
        "process, openai = a server with OpenAI's API; auto = rollout.engine if local or transformers, "
        "else local where the architecture is supported.",
    )
    base_url: Annotated[Text, AfterValidator(_without_secrets)] | None = Field(
        None, description="Address of the server (engine openai), as http://host:8000/v1."
    )
    model_name: Text | None = Field(
        None, description="The model's name at the server (engine openai); null = the only model that it serves."
    )
    server: Literal["auto", "openai", "vllm", "sglang", "llamacpp", "transformers"] = Field(
        "auto",
        description="Kind of server (engine openai), which determines the fields of requests; auto = as the server "
        "reports; openai = the plain API.",
    )
    endpoint: Literal["auto", "completions", "chat"] = Field(
        "auto",
        description="Endpoint for prompts (engine openai): completions receives them unchanged, chat as messages; "
        "auto = completions if the model's tokenizer is known here, else chat.",
    )
    concurrency: Annotated[int, Field(ge=1, le=4096)] = Field(16, description="Concurrent requests (engine openai).")
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        20, description="Retries of a request after transient errors, with increasing delays (engine openai)."
    )
    request_timeout: Annotated[float, Field(gt=0.0, le=86400.0)] = Field(
        600.0, description="Timeout of a completion in seconds (engine openai)."
    )
    api_key_variable: Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        "OPENAI_API_KEY",
        description="Environment variable with the server's key (engine openai); the key is not stored.",
    )
