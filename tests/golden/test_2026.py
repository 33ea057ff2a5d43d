"""The methods of 2025 and 2026 against the numbers of `reference_2026.py`, at the values of their presets.

The numbers were written from the papers without a look at the implementation. What the implementation calls things, and
which of several published forms it takes, stands in the first block alone.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.base import Advantage, Rollout, Tokens
from rlvr_cli.methods.controls import majority_rewards
from rlvr_cli.methods.correction import (
    Correction,
    GeometricRejection,
    IcePop,
    MaskedSequence,
    OffPolicySequenceMask,
    SequenceCorrection,
    TokenCorrection,
)
from rlvr_cli.methods.entropy_bonus import EntropyBonus
from rlvr_cli.methods.length import Brevity, LengthReward, LinearLength, Overlong
from rlvr_cli.methods.method import Method
from rlvr_cli.training.log_probs import token_log_probs
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.objective import Mismatch
from rlvr_cli.training.trl_arguments import resolve_method
from tests.golden.cases import Case, golden, read
from tests.golden.reference import FOLDER
from tests.golden.reference_2026 import long_log_probs

# The fields of components that a case sets to other values than the preset's.
CLIP_COV_SHARE = "share"
PASS_AT_K_K = "k"
OPD_CLIP = "clip"
# What the presets call a divisor that is the number of rows.
ROWS_ALONE = "sequence_sum"
# Published forms of the pass@k advantage, any of which may be the method's.
PASS_AT_K_FORMS = ("chen", "chen_code", "pkpo", "pkpo_loo", "best_minus_second", "best_minus_second_std")


def entropy_bonus(logits: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """Return () the bonus as a loss, a mean over the tokens, differentiable in (B, T, V) ``logits``."""
    states = logits.flatten(0, 1)
    targets = torch.zeros(len(states), dtype=torch.long)
    vocabulary = logits.shape[-1]
    _, entropies = token_log_probs(
        lambda states: states, states, targets, vocabulary=vocabulary, temperature=1.0, entropies=True
    )
    assert entropies is not None
    valid = mask.bool().flatten()
    return -coefficient * torch.where(valid, entropies, 0.0).sum() / valid.sum()


def adaptive_coefficients(params: dict[str, Any], measured: list[float]) -> dict[str, list[float]]:
    """Return the coefficients of successive steps: before the gate, and applied."""
    bonus = EntropyBonus(
        coef=params["start"], target=params["target"], min=params["min"], max=params["max"], step=params["delta"]
    )
    coef, last, before, applied = bonus.coef, 0.0, [], []
    for entropy in measured:
        before.append(coef)
        applied.append(bonus.applied(coef, last))
        coef, last = bonus.adapt(coef, entropy), entropy
    return {"coefficient_before": before, "coefficient_applied": applied}


def length_rewards(params: dict[str, Any], inputs: dict[str, Any]) -> list[float | None]:
    """Return the rewards after a length term; for overlong the term alone."""
    lengths = torch.tensor(inputs["lengths"])
    rewards = numbers(inputs.get("rewards", [0.0] * len(lengths)))
    mask = (torch.arange(max(lengths)) < lengths.unsqueeze(1)).long()
    correct = torch.tensor(inputs["correct"]).bool() if "correct" in inputs else rewards == 1
    of = Rollout(rewards, inputs.get("group_size", 1), mask, mask, correct=correct)
    term: LengthReward
    match params["kind"]:
        case "overlong":
            term = Overlong(buffer=params["cache"] / params["max_length"]).with_length(params["max_length"])
        case "linear":
            term = LinearLength(weight=params["coefficient"])
        case _:
            term = Brevity()
    shaped: list[float | None] = (rewards + term.terms(of)).tolist()
    return [None if value is None or math.isnan(value) else value for value in shaped]


def correction_weights(kind: str, params: dict[str, Any], log_ratios: list[list[float]]) -> list[Any]:
    """Return the weight of each row, or of each token with the kinds token and icepop.

    ``log_ratios``: log pi_old - log pi_sampler of each row's tokens.
    """
    low, high = params["icepop" if kind == "icepop" else "geometric"]
    correction: Correction = {
        "token": TokenCorrection(cap=params["cap"]),
        "icepop": IcePop(low=low, high=high),
        "sequence": SequenceCorrection(cap=params["cap"]),
        "mis": MaskedSequence(cap=params["cap"]),
        "geometric": GeometricRejection(low=low, high=high),
    }[kind]
    tokens, sampler = ratio_tokens(log_ratios)
    weights, _ = correction.weights(tokens, sampler)
    lengths = [len(row) for row in log_ratios]
    if kind in ("token", "icepop"):
        return [row[:length].tolist() for row, length in zip(weights, lengths, strict=True)]
    # A row without tokens has no weight to multiply.
    return [float(row[0]) for row in weights]


def ratio_tokens(log_ratios: list[list[float]]) -> tuple[Tokens, Tensor]:
    """Return tokens with old log-probs 0, and the sampler's log-probs at these ratios."""
    width = max(map(len, log_ratios))
    padded = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in log_ratios], dtype=torch.float64)
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (width - len(row)) for row in log_ratios])
    return Tokens(torch.zeros_like(padded), torch.zeros_like(padded), torch.ones_like(padded), mask), -padded


def sequence_mask(delta: float, drift: list[list[float]], advantages: list[float]) -> list[float]:
    """Return 1 for rows that are kept; ``drift``: log pi_sampler - log pi of each row's tokens."""
    tokens, sampler = ratio_tokens([[-value for value in row] for row in drift])
    rows = torch.tensor(advantages, dtype=torch.float64).unsqueeze(1).expand_as(tokens.log_probs)
    tokens = dataclasses.replace(tokens, advantages=rows)
    weights, _ = OffPolicySequenceMask(delta=delta).weights(tokens, sampler)
    return [float(row[0]) for row in weights]


def mismatch(log_ratios: list[list[float]]) -> dict[str, float]:
    """Return mean |d|, the k3 estimate and the share of ratios beyond 2 (or below 1/2)."""
    tokens, sampler = ratio_tokens(log_ratios)
    meter = StepMeter(resolve_method("grpo"), mismatch=True)
    neither = torch.zeros(len(sampler), 1, dtype=torch.bool)
    meter.add_mismatch(Mismatch(-sampler, tokens.mask, tokens.mask.bool(), neither, neither))
    values = meter.summary(meter.take_sums().tolist())
    above, below = values["mismatch/above_2"], values["mismatch/below_half"]
    assert above is not None and below is not None
    return {"mean_abs": values["mismatch/log_prob"], "k3": values["mismatch/kl"], "share_beyond_2": above + below}  # type: ignore[dict-item]


# From here on nothing depends on names of the implementation.


def resolved(name: str, *overrides: str) -> Method:
    return resolve_method(name, overrides)


def with_policy_loss(method: Method, **values: float) -> Method:
    return method.model_copy(update={"policy_loss": method.policy_loss.replace(**values)})


def pushes(method: Method, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """(B, T) the coefficients of grad log pi in grad J, before and after the aggregation."""
    statistics = method.policy_loss.statistics(method.shape_tokens(tokens))
    count = method.aggregation.count(tokens.mask, tokens.advantages)
    after = method.coefficients(tokens, count, statistics=statistics).detach()
    normaliser = method.aggregation.coefficients(tokens.mask, count)
    return torch.where(normaliser > 0, after / normaliser.clamp(min=1e-300), 0.0), after


def with_ids(tokens: Tokens) -> Tokens:
    """Return the tokens with ids, all different, from which Clip-Cov draws."""
    ids = torch.arange(tokens.mask.numel()).view(tokens.mask.shape)
    return dataclasses.replace(tokens, token_ids=ids)


def compare_pushes(case: Case, method: Method, push: str = "push") -> None:
    """F A of every token, and the gradient under the preset's aggregation, which is one that was published."""
    if "long_rows" in case.inputs:
        compare_long_rows(case, method)
        return
    before, after = pushes(method, with_ids(case.tokens()))
    ours = before.clamp(max=1e15)
    theirs = torch.tensor(case.take(push), dtype=torch.float64)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, msg=lambda text: f"{case.file}: {case.name}\n{text}")
    gradients = case.take("gradients")
    kind = "sequence_sum" if method.aggregation.kind == ROWS_ALONE else method.aggregation.kind
    assert kind in case.params["published_aggregation"], f"{kind} is in no publication"
    if push == "push":
        case.pending["gradient"] = gradients[kind]
        case.compare("gradient", -after)
    for name in [name for name in case.pending if name not in ("push", "gradients")]:
        case.ignore(name, "released code departs from the paper there, or an intermediate value")
    case.ignore("push", "another form is compared")
    case.finish()


def compare_long_rows(case: Case, method: Method) -> None:
    """F of rows of thousands of tokens: finite and equal at every token."""
    expected = case.take("weight_per_row")
    for (length, log_ratio, alternates, advantage), weight in zip(case.inputs["long_rows"], expected, strict=True):
        moved = torch.full((1, length), log_ratio, dtype=torch.float64)
        if alternates:
            moved[:, 1::2] *= -1
        old = torch.full_like(moved, -2.0)
        tokens = Tokens(old + moved, old, torch.full_like(moved, advantage), torch.ones_like(moved))
        ours = pushes(method, tokens)[0] / advantage
        assert bool(ours.isfinite().all())
        torch.testing.assert_close(ours, torch.full_like(ours, weight), rtol=1e-6, atol=1e-9)
        single = dataclasses.replace(tokens, log_probs=tokens.log_probs.float(), old_log_probs=old.float())
        assert bool(pushes(method, single)[0].isfinite().all()), "in single precision"
    case.finish()


@golden("dppo", "sapo", "gmpo", "vespo")
def test_policy_loss(case: Case) -> None:
    compare_pushes(case, resolved(case.file))


@golden("luspo")
def test_luspo(case: Case) -> None:
    method = with_policy_loss(resolved("luspo"), eps_low=case.params["eps_low"], eps_high=case.params["eps_high"])
    if case.name == "beyond the cap" and hasattr(method.policy_loss, "max_log_ratio"):
        return
    compare_pushes(case, method)


@golden("luspo")
def test_gspo_has_the_same_weight(case: Case) -> None:
    """LUSPO changes the divisor alone; with it, the machinery of this file is tested on a method that is old."""
    if case.name == "beyond the cap":
        return
    method = with_policy_loss(resolve_method("gspo"), eps_low=case.params["eps_low"], eps_high=case.params["eps_high"])
    case.params = {**case.params, "published_aggregation": ["sequence_mean"]}
    compare_pushes(case, method)


@golden("clip_cov")
def test_clip_cov_that_drops_every_candidate(case: Case) -> None:
    bounds = {"eps_low": case.params["eps_low"], "eps_high": case.params["eps_high"]}
    compare_pushes(case, with_policy_loss(resolved("clip-cov"), **bounds, **{CLIP_COV_SHARE: 1 - 1e-9}))


@golden("clip_cov")
def test_clip_cov_drops_its_number_of_candidates(case: Case) -> None:
    """At the preset's share: at least one, and only candidates."""
    bounds = {"eps_low": case.params["eps_low"], "eps_high": case.params["eps_high"]}
    method = with_policy_loss(resolved("clip-cov"), **bounds)
    tokens = with_ids(case.tokens())
    undropped = pushes(with_policy_loss(resolve_method("grpo"), **bounds), tokens)[0]
    dropped = pushes(method, tokens)[0] != undropped
    assert bool((~dropped | case_mask(case, "in_band")).all())
    # A candidate whose advantage or gradient is 0 anyway can be drawn without being seen.
    assert int(dropped.sum()) <= max(case.pending["dropped_of_code_at_2e_4"], 1)
    if case.pending["dropped_of_code_at_2e_4"] and bool((undropped[case_mask(case, "in_band")] != 0).all()):
        assert int(dropped.sum()) == case.pending["dropped_of_code_at_2e_4"]


def case_mask(case: Case, name: str) -> Tensor:
    return torch.tensor(case.pending[name]).bool()


@golden("kl_cov")
def test_kl_cov(case: Case) -> None:
    method = with_policy_loss(resolved("kl-cov"), share=case.params["share"])
    if "long_batch" not in case.inputs:
        compare_pushes(case, method)
        return
    of = case.inputs["long_batch"]
    pairs = [[long_log_probs(i, t) for t in range(of["tokens"])] for i in range(of["rows"])]
    both = torch.tensor(pairs, dtype=torch.float64)
    advantages = torch.tensor(of["advantages_per_row"], dtype=torch.float64).unsqueeze(1).expand(both.shape[:2])
    tokens = Tokens(both[..., 0], both[..., 1], advantages, torch.ones_like(advantages))
    plain = advantages * tokens.ratio
    penalised = {tuple(place) for place in ((pushes(method, tokens)[0] - plain).abs() > 1e-9).nonzero().tolist()}
    selection = case.take("selection")
    above, level = ({tuple(place) for place in selection[name]} for name in ("above", "level"))
    # A selected token that did not move has no gradient of the penalty.
    moved = {place for place in above | level if both[place][0] != both[place][1]}
    assert above & moved <= penalised <= above | level
    # Equal covariances are selected together, beyond the number if need be.
    assert len(penalised) >= min(selection["number"], len(moved))
    case.finish()


# Advantages


def numbers(values: Any) -> Tensor:
    """A nested list as float64, null as NaN."""

    def filled(value: Any) -> Any:
        return [filled(each) for each in value] if isinstance(value, list) else math.nan if value is None else value

    return torch.tensor(filled(values), dtype=torch.float64)


def rollout(case: Case) -> Rollout:
    """The case's rollout, with the fields that it names."""
    inputs, mask = case.inputs, case.tensor("mask")
    further = {name: numbers(inputs[name]) for name in ("greedy_rewards", "parts") if name in inputs}
    if "correct" in inputs:
        further["correct"] = torch.tensor(inputs["correct"]).bool()
    return Rollout(numbers(inputs["rewards"]), inputs["group_size"], mask.long(), mask, **further)


def compare_advantages(case: Case, estimator: Advantage, name: str = "advantages_per_row") -> None:
    """Advantages of rows, spread over their tokens; 0 for rows without a reward."""
    of = rollout(case)
    ours = estimator.advantages(of).double().expand_as(of.mask)
    assert bool(ours.isfinite().all())
    rows = torch.tensor(case.take(name), dtype=torch.float64).unsqueeze(1)
    valid = of.mask.bool()
    torch.testing.assert_close(
        torch.where(valid, ours, 0.0),
        torch.where(valid, rows, 0.0),
        rtol=1e-6,
        atol=1e-6,
        msg=lambda text: f"{case.file}: {case.name}\n{text}",
    )
    for other in list(case.pending):
        case.ignore(other, "released code departs from the paper there")
    case.finish()


@golden("maxrl")
def test_maxrl(case: Case) -> None:
    estimator = resolved("maxrl").advantage
    by_reward = "by_reward" in case.pending and not estimator.needs_correct
    compare_advantages(case, estimator, "by_reward" if by_reward else "advantages_per_row")


@golden("opo", "remax", "gdpo")
def test_advantage(case: Case) -> None:
    compare_advantages(case, resolved(case.file).advantage)


@golden("opo")
def test_dr_grpo_is_opo_where_lengths_are_equal(case: Case) -> None:
    if case.name in ("equal lengths", "equal rewards"):
        compare_advantages(case, resolve_method("dr-grpo").advantage)


@golden("batch_scale")
def test_scale_of_the_batch(case: Case) -> None:
    compare_advantages(case, resolved("grpo", "advantage.scale=batch").advantage)


def test_pass_at_k_is_one_of_the_published_forms() -> None:
    estimator = resolved("pass-at-k").advantage
    forms, why = set(PASS_AT_K_FORMS), {}
    for case in read(FOLDER, "pass_at_k"):
        if case.params["k"] == 1:
            # Every form but one's limit; not all implementations allow it.
            continue
        for form in sorted(forms):
            fixed = form.startswith("best")
            if fixed and case.params["k"] != case.inputs["group_size"]:
                continue
            of_k = estimator if fixed else estimator.replace(**{PASS_AT_K_K: case.params["k"]})
            case.pending[form] = case.pending[form][:]
            try:
                compare_advantages(Case(case.file, case.name, case.params, case.inputs, dict(case.pending)), of_k, form)
            except AssertionError as error:
                forms.remove(form)
                why[form] = str(error)
    assert forms, "\n".join(f"{form}: {text}" for form, text in why.items())


@golden("opd")
def test_opd(case: Case) -> None:
    estimator = resolved("opd", "advantage.teacher=teacher").advantage
    mask = case.tensor("mask")
    of = Rollout(
        rewards=torch.zeros(len(mask), dtype=torch.float64),
        group_size=1,
        token_ids=mask.long(),
        mask=mask,
        old_log_probs=case.tensor("old_log_probs"),
        teacher_log_probs=case.tensor("teacher_log_probs"),  # type: ignore[call-arg]
    )
    clips = case.take("advantages_clipped")
    case.ignore("prime_rl", "another objective")
    forms = {1e6: case.take("advantages"), **{float(clip): values for clip, values in clips.items()}}
    for clip, expected in forms.items():
        case.pending[f"clip {clip}"] = expected
        case.compare(f"clip {clip}", estimator.replace(**{OPD_CLIP: clip}).advantages(of) * mask)
    case.finish()


# Functions that the first block names


@golden("entropy_bonus")
def test_entropy_bonus(case: Case) -> None:
    if case.params.get("adaptive") in ("paper", "code"):
        return  # the gate is TRL's
    if "adaptive" in case.params:
        for name, values in adaptive_coefficients(case.params, case.inputs["measured"]).items():
            case.compare(name, torch.tensor(values, dtype=torch.float64))
        case.finish()
        return
    logits = case.tensor("logits").requires_grad_()
    loss = entropy_bonus(logits, case.tensor("mask"), case.params["coefficient"])
    case.compare("loss", loss)
    case.compare("grad_logits", torch.autograd.grad(loss, logits)[0])
    case.ignore("entropies", "an intermediate value")
    case.finish()


@golden("lengths")
def test_length_rewards(case: Case) -> None:
    name = "penalties" if case.params["kind"] == "overlong" else "rewards"
    if case.params.get("cache") == 0:
        return  # a buffer of 0 is refused
    ours = numbers(length_rewards(case.params, case.inputs))
    torch.testing.assert_close(ours, numbers(case.take(name)), equal_nan=True)
    case.finish()


def log_ratios(case: Case) -> list[list[float]]:
    if "rows" in case.inputs:
        rows: list[list[float]] = case.inputs["rows"]
        return rows
    return [[d * (-1) ** t if alternates else d for t in range(n)] for n, d, alternates in case.inputs["long_rows"]]


@golden("corrections")
def test_corrections(case: Case) -> None:
    if "opsm" in case.pending:
        kept = sequence_mask(case.params["delta"], case.inputs["drift"], case.inputs["advantages_per_row"])
        assert kept == case.take("opsm")
        case.finish()
        return
    rows = log_ratios(case)
    for kind in ("token", "icepop"):
        for ours, theirs in zip(correction_weights(kind, case.params, rows), case.pending.pop(kind, []), strict=False):
            torch.testing.assert_close(numbers(ours), numbers(theirs))
    for kind in ("sequence", "mis", "geometric"):
        torch.testing.assert_close(numbers(correction_weights(kind, case.params, rows)), numbers(case.take(kind)))
    wide = {**case.params, "geometric": [0.5, 2.0]}
    torch.testing.assert_close(
        numbers(correction_weights("geometric", wide, rows)), numbers(case.take("geometric_.5_2"))
    )
    theirs = case.take("mismatch")
    assert mismatch(rows) == pytest.approx(theirs)
    case.finish()


@golden("controls")
def test_majority_rewards(case: Case) -> None:
    """The rewards for format and for wrong answers read the task's verdicts: tests/training/test_controls.py."""
    for answers, expected in zip(case.inputs["answers"], case.take("majority"), strict=True):
        judged = [reward is not None for reward in expected]
        ours = majority_rewards(
            [answer if scorable else None for answer, scorable in zip(answers, judged, strict=True)], {}
        )
        assert ours == [reward or 0.0 for reward in expected]
    for name in list(case.pending):
        case.ignore(name, "read from the task's verdicts")
    case.finish()
