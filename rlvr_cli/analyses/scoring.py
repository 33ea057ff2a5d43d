"""Load a policy of a run, and score a saved rollout: log-probs and entropies of its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.analyses.method_step import ScoredTokens
from rlvr_cli.analyses.saved_rollout import Policy, SavedRollout, read_rollout
from rlvr_cli.config.load import preset_of_task
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.gdpo import part_columns
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.opd import check_teacher
from rlvr_cli.models.libraries import quiet_hub
from rlvr_cli.models.load import load_model
from rlvr_cli.training.teacher import resolve_teacher

Rows = Sequence[dict[str, Any]]
# Tolerance between log-probs of the sampling and the scoring code for the same weights, float32.
SAME_POLICY = 1e-3


class LoadedPolicy:
    """A causal language model in eval mode, at the sampling ``temperature``; rows are records of a rollout file."""

    def __init__(self, model: Any, tokenizer: Any, temperature: float) -> None:
        self.model, self.tokenizer, self.temperature = model, tokenizer, temperature
        self.device: torch.device = next(model.parameters()).device

    def batches(self, rows: Rows) -> Iterator[list[int]]:
        """Yield batches of row indices, each of one prompt, limited by the size of their logits, without empty rows."""
        from rlvr_cli.training.log_probs import MAX_LOGITS

        vocabulary = self.model.config.vocab_size
        by_prompt: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            if row["token_ids"]:
                by_prompt.setdefault(row["prompt"], []).append(index)
        for indices in by_prompt.values():
            longest = max(len(rows[index]["token_ids"]) for index in indices)
            size = max(1, MAX_LOGITS // ((longest + 1) * vocabulary))
            yield from (indices[start : start + size] for start in range(0, len(indices), size))

    def forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (n, T) log-probs, differentiable, and entropies (nats) of the tokens of rows of one prompt."""
        distributions = self.distributions(rows)
        tokens, _ = pad([row["token_ids"] for row in rows])
        log_probs = distributions.gather(-1, tokens.to(self.device).unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            entropies = -(distributions.exp() * distributions).sum(dim=-1)
        return log_probs, entropies

    def distributions(self, rows: Rows) -> Tensor:
        """Return (n, T, V) log-probs over the vocabulary at the tokens of rows of one prompt."""
        prompt = list(self.tokenizer(rows[0]["prompt"], add_special_tokens=False)["input_ids"])
        ids, mask = (tensor.to(self.device) for tensor in pad([[*prompt, *row["token_ids"]] for row in rows]))
        length = ids.shape[1] - len(prompt)
        logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=length + 1).logits[:, -length - 1 : -1]
        # In float32 at least, as in the trainer.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_softmax: Tensor = (logits / self.temperature).log_softmax(dim=-1)
        return log_softmax

    def score(self, rows: Rows, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Return (N, ``width``) log-probs and entropies (nats) of the rows' tokens, float64, 0 on padding."""
        width = max(len(row["token_ids"]) for row in rows) if width is None else width
        log_probs, entropies = torch.zeros(2, len(rows), width, dtype=torch.float64)
        for indices in self.batches(rows):
            chosen = [rows[index] for index in indices]
            with torch.no_grad():
                scores, spreads = (tensor.double().cpu() for tensor in self.forward(chosen))
            for batch_index, (index, row) in enumerate(zip(indices, chosen, strict=True)):
                length = len(row["token_ids"])
                log_probs[index, :length] = scores[batch_index, :length]
                entropies[index, :length] = spreads[batch_index, :length]
        return log_probs, entropies


def load_policy(saved: SavedRollout, policy: Policy, *, dtype: torch.dtype | None = None) -> LoadedPolicy:
    """Load ``policy``, on a GPU if available, in the run's dtype unless ``dtype`` is set. Raises UserError."""
    quiet_hub()
    settings = saved.config.model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Only the model before training has a revision.
    revision = settings.revision if policy.step == 0 else None
    run_dtype = "float32" if settings.dtype == "auto" else settings.dtype
    model, tokenizer = load_model(policy.model, revision=revision, dtype=run_dtype, device=device)
    if dtype is not None:
        model = model.to(dtype)
    # Gradients cover the whole model, including weights frozen under an adapter.
    model.requires_grad_(True)
    return LoadedPolicy(model, tokenizer, saved.config.rollout.temperature)


def parse_dtype(name: str | None) -> torch.dtype:
    """Return the dtype ``name``; None for float64 on a CPU, float32 on a GPU."""
    dtype: torch.dtype = getattr(torch, name or ("float32" if torch.cuda.is_available() else "float64"))
    return dtype


def pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the (N, T) rows, right-padded with 0, and their (N, T) mask."""
    width = max(map(len, rows), default=0)
    filled = [(*row, *[0] * (width - len(row))) for row in rows]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    mask = (torch.arange(width) < lengths.unsqueeze(1)).long()
    return torch.tensor(filled, dtype=torch.int64).reshape(len(rows), width), mask


@dataclass(frozen=True)
class ScoredRun:
    """A scored rollout of a run.

    Attributes:
        saved: its records and policies.
        scored: the rollout under the old and the current policy.
        sampling_gap: mean over tokens of |log-prob under ``old`` - log-prob at sampling|, from the rows' sums.
    """

    saved: SavedRollout
    scored: ScoredTokens
    tokenizer: Any
    sampling_gap: float

    @property
    def numbers(self) -> dict[str, Any]:
        return {
            "rollout": self.saved.number,
            "sampled_after_step": self.saved.sampled_after,
            "old_policy": self.saved.old.step,
            "current_policy": self.saved.current.step,
            "sampling_gap": self.sampling_gap,
        }

    @property
    def notes(self) -> list[str]:
        """A caveat if the old policy is not the one that sampled, or has different log-probs."""
        saved, gap = self.saved, self.sampling_gap
        if not saved.old_is_exact:
            return [
                f"The policy that sampled this rollout (step {saved.sampled_after}) was not kept. Ratios are relative "
                f"to {saved.old.label}, {gap:.2g} nats per token away."
            ]
        if gap > SAME_POLICY:
            behind = saved.config.rollout.behind
            reason = f"rollout.behind={behind}" if behind else "another device or dtype"
            return [f"The old policy's log-probs differ from those at sampling by {gap:.2g} nats per token: {reason}."]
        return []


def score_rollout(saved: SavedRollout, methods: Sequence[Method], old: LoadedPolicy | None = None) -> ScoredRun:
    """Score the rollout with the policies that ``methods`` require. Raises UserError for data that are not saved."""
    problems = [
        f"{method.name}: its advantages require a value head, whose predictions are not saved. Use `rlvr methods plot` "
        "to compare its weights."
        for method in methods
        if method.advantage.needs_values
    ]
    problems += [
        f"{method.name}: the rewards of a control are of a training, and this analysis has the verifier's."
        for method in methods
        if method.reward.is_control
    ]
    problems += [
        f"{method.name}: the gradient of an entropy bonus is no weight of a token, which is all that this analysis has."
        for method in methods
        if method.entropy_bonus.is_on
    ]
    if problems:
        raise UserError(problems)
    rows = saved.rows
    sampled_by = old or load_policy(saved, saved.old)
    tokenizer = sampled_by.tokenizer
    old_log_probs, old_entropies = sampled_by.score(rows)
    del sampled_by  # one model in memory at a time
    if saved.current == saved.old:
        log_probs, entropies = old_log_probs, old_entropies
    else:
        log_probs, entropies = load_policy(saved, saved.current).score(rows)
    reference, initial = _score_base(saved, methods)
    teacher = _score_teacher(saved, methods)
    ids, mask = pad([row["token_ids"] for row in rows])
    rewards = [row["clean_reward"] for row in rows]
    greedy = [row.get("greedy", {}).get("reward") for row in rows]
    if any(method.advantage.needs_greedy for method in methods):
        if not any("greedy" in row for row in rows):
            raise UserError("the run sampled no greedy completions, which remax needs. Analyze a run of remax.")
        rewards = [None if baseline is None else reward for reward, baseline in zip(rewards, greedy, strict=True)]
    names = sorted({name for row in rows for name in row["parts"]})
    parts, part_weights = part_columns([row["parts"] for row in rows], names, saved.config.task.part_weights)
    rollout = Rollout(
        rewards=torch.tensor([math.nan if reward is None else reward for reward in rewards], dtype=torch.float64),
        group_size=saved.config.rollout.group_size,
        token_ids=ids,
        mask=mask * learned_mask(rows, saved.config),
        old_log_probs=old_log_probs,
        entropies=old_entropies,
        ref_log_probs=reference,
        teacher_log_probs=teacher,
        initial_entropy=initial,
        correct=torch.tensor([row["correct"] for row in rows]),
        parts=torch.tensor(parts, dtype=torch.float64),
        part_weights=torch.tensor(part_weights, dtype=torch.float64),
        greedy_rewards=torch.tensor([math.nan if value is None else value for value in greedy], dtype=torch.float64),
    )
    sums = torch.tensor([row["log_prob"] for row in rows], dtype=torch.float64)
    gap = float(((old_log_probs * mask).sum(dim=1) - sums).abs().sum() / mask.sum().clamp(min=1))
    return ScoredRun(saved, ScoredTokens(rollout, old_log_probs, log_probs, entropies), tokenizer, gap)


def learned_mask(rows: Sequence[dict[str, Any]], config: Config) -> Tensor:
    """Return the (N, 1) mask of rows, 0 where ``rollout.drop_truncated`` excludes them."""
    dropped = [bool(row["truncated"]) and config.rollout.drop_truncated for row in rows]
    return 1 - torch.tensor(dropped, dtype=torch.int64).unsqueeze(1)


def _score_base(saved: SavedRollout, methods: Sequence[Method]) -> tuple[Tensor | None, float | None]:
    reference = any(method.needs_reference for method in methods)
    initial = any(method.needs_initial_entropy for method in methods)
    if not reference and not initial:
        return None, None
    base = load_policy(saved, saved.base)
    return base.score(saved.rows)[0] if reference else None, _initial_entropy(saved, base, methods) if initial else None


def _score_teacher(saved: SavedRollout, methods: Sequence[Method]) -> Tensor | None:
    """Return log-probs under the methods' teacher; None without one. Raises UserError for several teachers."""
    taught = {method.name: method.teacher for method in methods if method.advantage.needs_teacher}
    for method in methods:
        check_teacher(method.name, method.advantage)
    if len({*taught.values()}) > 1:
        raise UserError(f"{', '.join(taught)}: these methods have different teachers.")
    for teacher in {*taught.values()}:
        name = preset_of_task(str(teacher), saved.config.task.name)
        source = resolve_teacher(name, Path(saved.config.run.dir))
        return load_policy(saved, Policy(saved.current.step, source.name)).score(saved.rows)[0]
    return None


def _initial_entropy(saved: SavedRollout, base: LoadedPolicy, methods: Sequence[Method]) -> float:
    """Return the base model's mean token entropy, as measured by the run or on its first rollout. Raises UserError."""
    measuring = [method for method in methods if method.initial_entropy_samples is not None]
    if measuring:
        measured = saved.run.read_manifest().get("initial_entropy")
        if measured is None:
            raise UserError(
                f"{measuring[0].name}: requires the entropy before training on {measuring[0].initial_entropy_samples} "
                "problems, not measured by this run. Set method.shaping.entropy_filter.samples=null to use its first "
                "rollout."
            )
        return float(measured)
    rows = read_rollout(saved.run, 0)
    _, entropies = base.score(rows)
    tokens = sum(len(row["token_ids"]) for row in rows)
    return float(entropies.sum() / max(tokens, 1))
