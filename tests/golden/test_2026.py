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
from rlvr_cli.methods.grpo import GroupAdvantage
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import METHODS
from rlvr_cli.training.trl_arguments import resolve_method
from tests.golden.cases import Case, golden, read
from tests.golden.reference import FOLDER
from tests.golden.reference_2026 import long_log_probs

# Methods that need not be there yet. Nothing may be skipped that is not named here.
MISSING = {
    *("dppo", "sapo", "gmpo", "vespo", "luspo", "clip-cov", "kl-cov"),
    *("maxrl", "opo", "remax", "pass-at-k", "gdpo", "opd", "advantage.scale=batch"),
}
# The fields of components that a case sets to other values than the preset's.
CLIP_COV_SHARE = "share"
PASS_AT_K_K = "k"
OPD_CLIP = "clip"
# What the presets call a divisor that is the number of rows.
ROWS_ALONE = "sequence_sum"
# Published forms of the pass@k advantage, any of which may be the method's.
PASS_AT_K_FORMS = ("chen", "chen_code", "pkpo", "pkpo_loo", "best_minus_second", "best_minus_second_std")


def entropy_bonus(logits: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """Return () the bonus as a loss, differentiable in (B, T, V) ``logits``."""
    pytest.skip("no entropy bonus to compare: name its function here")


def adaptive_coefficients(params: dict[str, Any], measured: list[float]) -> dict[str, list[float]]:
    """Return the coefficients of successive steps: before the gate, and applied."""
    pytest.skip("no adaptive entropy bonus to compare: name its function here")


def length_rewards(params: dict[str, Any], inputs: dict[str, Any]) -> list[float | None]:
    """Return the rewards after a length term; for overlong the term alone."""
    pytest.skip("no length rewards to compare: name their function here")


def correction_weights(kind: str, params: dict[str, Any], log_ratios: list[list[float]]) -> list[Any]:
    """Return the weight of each row, or of each token with the kinds token and icepop.

    ``log_ratios``: log pi_old - log pi_sampler of each row's tokens.
    """
    pytest.skip("no corrections to compare: name their function here")


def sequence_mask(delta: float, drift: list[list[float]], advantages: list[float]) -> list[float]:
    """Return 1 for rows that are kept; ``drift``: log pi_sampler - log pi of each row's tokens."""
    pytest.skip("no off-policy sequence mask to compare: name its function here")


def mismatch(log_ratios: list[list[float]]) -> dict[str, float]:
    """Return mean |d|, the k3 estimate and the share of ratios beyond 2 (or below 1/2)."""
    pytest.skip("no mismatch metrics to compare: name their function here")


def control_rewards(kind: str, answers: list[str | None], judged: list[float], truth: str) -> list[float | None]:
    """Return one prompt's rewards under a control: majority, incorrect or format."""
    pytest.skip("no control rewards to compare: name their function here")


# From here on nothing depends on names of the implementation.


def resolved(name: str, *overrides: str) -> Method:
    if name not in METHODS:
        assert name in MISSING, f"{name} is no method"
        pytest.skip(f"{name} is not there yet")
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


def compare_pushes(case: Case, method: Method, push: str = "push") -> None:
    """F A of every token, and the gradient under the preset's aggregation, which is one that was published."""
    if "long_rows" in case.inputs:
        compare_long_rows(case, method)
        return
    before, after = pushes(method, case.tokens())
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
    compare_pushes(case, with_policy_loss(resolved("clip-cov"), **bounds, **{CLIP_COV_SHARE: 1.0}))


@golden("clip_cov")
def test_clip_cov_drops_its_number_of_candidates(case: Case) -> None:
    """At the preset's share: at least one, and only candidates."""
    bounds = {"eps_low": case.params["eps_low"], "eps_high": case.params["eps_high"]}
    method = with_policy_loss(resolved("clip-cov"), **bounds)
    tokens = case.tokens()
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
    method = resolved("kl-cov")
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
    assert len(penalised) <= selection["number"]
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
    if "advantage.scale=batch" in MISSING and "batch" not in str(GroupAdvantage.model_fields["scale"].annotation):
        pytest.skip("advantage.scale=batch is not there yet")
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
    forms = {None: case.take("advantages"), **{float(clip): values for clip, values in clips.items()}}
    for clip, expected in forms.items():
        case.pending[f"clip {clip}"] = expected
        case.compare(f"clip {clip}", estimator.replace(**{OPD_CLIP: clip}).advantages(of) * mask)
    case.finish()


# Functions that the first block names


@golden("entropy_bonus")
def test_entropy_bonus(case: Case) -> None:
    if "adaptive" in case.params:
        found = adaptive_coefficients(case.params, case.inputs["measured"])
        for name, values in found.items():
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
def test_control_rewards(case: Case) -> None:
    groups = list(zip(case.inputs["answers"], case.inputs["judged"], strict=True))
    for kind, names in (
        ("majority", ("majority",)),
        ("format", ("format",)),
        # The word in the paper, and the opposite of the verdict.
        ("incorrect", ("incorrect_opposite", "incorrect_label")),
    ):
        ours = [control_rewards(kind, answers, judged, case.inputs["truth"]) for answers, judged in groups]
        theirs = [case.take(name) for name in names]
        assert ours in theirs, kind
    case.finish()
