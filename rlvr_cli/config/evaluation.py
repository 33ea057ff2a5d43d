"""The sections `validation` and `eval`: held-out evaluations during training, and by `rlvr eval`."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from rlvr_cli.config.rollout import StopTexts, Temperature, TopP
from rlvr_cli.core.section import Count, CountOrZero, FromList, OneOrMore, Section, Text

USUAL_KS = (1, 8, 32)


def _refuse_secrets(value: str) -> str:
    """Refuse an address with credentials, a query or a fragment."""
    address = urlsplit(value)
    if "@" in value or address.query or address.fragment:
        # Not repeated in the message, since it may contain the key.
        raise ValueError(
            "holds a user name, a password or a query, which would be stored with the results. Set the plain address, "
            "and the key in OPENAI_API_KEY (or the variable of eval.api_key_variable)"
        )
    return value


class HeldOutConfig(Section):
    """Held-out problems and sampling: the keys of both sections."""

    problems: Count = Field(420, description="Number of held-out problems.")
    samples: CountOrZero = Field(
        32,
        description="Completions sampled per problem, raised to the largest k of pass_at; 0 = only the greedy "
        "completion.",
    )
    pass_at: Annotated[tuple[Count, ...], FromList] = Field(
        (), description="Values of k of pass@k to report; empty = those of 1, 8 and 32 that samples allows."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature in evaluation.")
    top_p: TopP = Field(
        1.0,
        description="Nucleus sampling in evaluation: cumulative probability of the most likely tokens to sample "
        "from; 1 = all tokens.",
    )
    stop: StopTexts | None = Field(
        None, description="Texts that end a completion, which keeps them; null = rollout.stop."
    )
    max_new_tokens: Count | None = Field(
        None, description="Maximum length of a completion, in tokens; null = rollout.max_new_tokens."
    )
    greedy: bool = Field(True, description="Also decode one greedy completion per problem and report its accuracy.")
    split: Literal["dev", "test"] = Field("test", description="Held-out split: choose settings on dev, report on test.")
    batch: Count | None = Field(
        None,
        description="Completions sampled at once per process; null = 256, or fewer if memory is short (engine "
        "local). Affects speed and memory; only with engine transformers it also changes the samples.",
    )

    @property
    def samples_needed(self) -> int:
        return max((self.samples, *self.pass_at))

    @property
    def reported_ks(self) -> tuple[int, ...]:
        """Return the distinct k of pass@k; empty if only the greedy completion is sampled."""
        return tuple(dict.fromkeys(self.pass_at)) or tuple(k for k in USUAL_KS if k <= self.samples)


class ValidationConfig(HeldOutConfig):
    """Evaluation on held-out problems during training."""

    every: CountOrZero = Field(
        0,
        description="Rollouts between evaluations during training; 0 = none. Generated problems are those of the dev "
        "split.",
    )
    engine: Literal["auto", "local", "transformers"] = Field(
        "auto",
        description="Sampler: local = the project's KV-cache sampler, transformers = `generate`; auto = "
        "rollout.engine if it is one of these, else local if the architecture is supported, else transformers.",
    )


class EvalConfig(HeldOutConfig):
    """Evaluation on held-out problems by `rlvr eval`."""

    benchmark: Annotated[tuple[Text, ...], OneOrMore] = Field(
        (),
        description="Benchmarks or suites on which `rlvr eval RUN` evaluates without --benchmark; empty = the run's "
        "task. Without effect on training.",
    )
    engine: Literal["auto", "local", "transformers", "vllm", "openai"] = Field(
        "auto",
        description="Sampler: local = the project's KV-cache sampler, transformers = `generate`, vllm = vLLM in this "
        "process, openai = a server with an OpenAI-compatible API; auto = rollout.engine if local or transformers, "
        "else local if the architecture is supported, else transformers.",
    )
    base_url: Annotated[Text, AfterValidator(_refuse_secrets)] | None = Field(
        None, description="Address of the server, as http://host:8000/v1 (engine openai)."
    )
    model_name: Text | None = Field(
        None, description="Name of the model on the server; null = the only model it serves (engine openai)."
    )
    server: Literal["auto", "openai", "vllm", "sglang", "llamacpp", "transformers"] = Field(
        "auto",
        description="Server software, which determines the request fields; auto = detected, openai = the plain API "
        "(engine openai).",
    )
    endpoint: Literal["auto", "completions", "chat"] = Field(
        "auto",
        description="API endpoint: completions takes prompts as text, chat as messages; auto = completions if the "
        "model's tokenizer is available, else chat (engine openai).",
    )
    concurrency: Annotated[int, Field(ge=1, le=4096)] = Field(
        16, description="Maximum number of concurrent requests (engine openai)."
    )
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        20,
        description="Maximum number of retries of a request after a transient error, with exponential backoff (engine "
        "openai).",
    )
    request_timeout: Annotated[float, Field(gt=0.0, le=86400.0)] = Field(
        600.0, description="Timeout of a request, in seconds (engine openai)."
    )
    api_key_variable: Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        "OPENAI_API_KEY",
        description="Environment variable that holds the server's API key (engine openai). The key itself is not "
        "stored.",
    )
