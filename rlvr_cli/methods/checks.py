"""Try a user file's components of a method on synthetic tokens, in a separate process, before a training.

Refused are undocumented shapes, dtypes and types, non-finite numbers, a gradient through F, results that depend on the
split of a batch, modified inputs, unseeded random numbers, and files that end their process or hang.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.user_code import UserFile, describe_value, find_user_file, function_line, guard
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.base import Advantage, Part, PolicyLoss, Rollout, RolloutShaping, Shaping, Tokens, TokenShaping
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import AnyMethod, Method
from rlvr_cli.methods.user import EXAMPLE, build_method_type, load_method, shape_problem
from rlvr_cli.workers.trial import try_files

# Timeout of the trial of a component's method, in seconds.
_TRIAL = 30.0
# Natural logarithms of ratio and old probability: the probability of a token is the product of the two, at most 1.
_LOG_RATIOS = (-20.0, -5.0, -1.0, -0.3, -0.1, -0.01, 0.0, 0.01, 0.1, 0.3, 1.0, 5.0, 20.0)
_LOG_OLD = (-27.0, -9.0, -3.0, -1.0, -0.35, -0.02, -1e-4)
_ROWS = 6
# Tolerance in float64 for a different order of additions.
_ALIKE = 1e-9
_ABOUT_NONE = ". A field is None unless the class declares it, for example with `needs_entropies`"


class _Fault(UserError):
    """A component's method breaks a rule."""


def check_user_parts(of: AnyMethod) -> None:
    """Try a method's components from user files in a separate process. Raises UserError with all problems."""
    if of.policy is not None and any(_is_tried(component) for component in of.policy.parts):
        files = [find_user_file(reference) for reference in of.model_dump(include={"files"})["files"]]
        try_files(f"{__name__}:check_method", files, of.model_dump(mode="json", exclude={"files"}))


def _is_tried(component: Part) -> bool:
    return component.is_user_defined and (not isinstance(component, Shaping) or component.is_on)


def check_method(files: Sequence[UserFile], values: Mapping[str, Any]) -> None:
    """Try the files' components in the method with these values. Raises UserError with all problems."""
    method = build_method_type(tuple(map(load_method, files))).model_validate(values)
    torch.manual_seed(0)
    if problems := [problem for tried in method.parts if _is_tried(tried) for problem in _find_problems(tried, method)]:
        raise UserError(problems)


def has_unit_weight_on_policy(loss: PolicyLoss) -> bool:
    """Return whether F is 1 wherever the ratio is 1."""
    if not loss.is_user_defined:
        return loss.unit_on_policy
    if loss.recorded:
        return False
    tokens = _tokens(loss, log_ratios=(0.0,))
    try:
        weight = loss.weight(tokens, _statistics(loss, tokens))
        return bool((weight == 1)[tokens.mask.bool()].all())
    except RunError:
        return False


def _tokens(component: Part, *, log_ratios: Sequence[float] = _LOG_RATIOS, dtype: Any = None) -> Tokens:
    """Return a step of six rows of different lengths: every pair of ratio and old probability, both signs of A."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.tensor([(ratio, old) for ratio in log_ratios for old in _LOG_OLD if ratio + old <= 0] * _ROWS)
    pairs = pairs[torch.randperm(len(pairs), generator=generator)].double()
    length = len(pairs) // _ROWS
    ratios, old = (pairs[: length * _ROWS, column].view(_ROWS, length) for column in (0, 1))
    signs = torch.where(torch.rand(_ROWS, length, generator=generator) < 0.5, -1.0, 1.0).double()
    mask = (torch.arange(length) < length - torch.arange(_ROWS).unsqueeze(1)).double()
    kind = dtype or torch.float64
    sizes = torch.tensor([0.5, 1.0, 1.7, 0.9, 1.3, 0.2]).double().unsqueeze(1)
    entropies = torch.rand(_ROWS, length, generator=generator).double() * 5
    values = {
        "log_probs": (old + ratios) * mask,
        "old_log_probs": old * mask,
        "advantages": signs * sizes,
        "mask": mask,
        "entropies": entropies if getattr(component, "needs_entropies", False) else None,
    }
    tensors = {name: None if value is None else value.to(kind) for name, value in values.items()}
    ids = torch.randint(0, 100, mask.shape, generator=generator)
    return Tokens(**tensors, token_ids=ids)  # type: ignore[arg-type]


def _select_rows(tokens: Tokens, rows: Any, columns: Any = slice(None)) -> Tokens:
    cut = {
        field.name: value[rows][:, columns if value.shape[1] > 1 else slice(None)]
        for field in dataclasses.fields(tokens)
        if (value := getattr(tokens, field.name)) is not None
    }
    return dataclasses.replace(tokens, **cut)


def _equal(first: Any, second: Any) -> bool:
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return True
    return first.shape == second.shape and bool(((first == second) | (first.isnan() & second.isnan())).all())


def _call_unchanged(call: Callable[[Any], Any], argument: Any) -> Any:
    """Return the result. Raises _Fault for a modified input, or another result of a second call."""
    before, torch_state, python_state = copy.deepcopy(vars(argument)), torch.get_rng_state(), random.getstate()
    first = call(argument)
    if changed := [name for name, value in before.items() if not _equal(value, getattr(argument, name))]:
        raise _Fault(f"modifies its input {', '.join(changed)}. Make new tensors, as `x = x * 2` and not `x *= 2`")
    if not torch.equal(torch.get_rng_state(), torch_state) or random.getstate() != python_state:
        raise _Fault("draws random numbers: runs of one seed would differ. The result must depend on the input alone")
    if not _equal(first, call(argument)):
        raise _Fault("returns different results for the same input: the result must depend on the input alone")
    return first


def _tensor(
    result: Any, shapes: Sequence[tuple[int, ...]], dtype: Any, valid: Tensor, about: Callable[[Any], str]
) -> Tensor:
    if wrong := shape_problem(result, shapes, tuple(valid.shape)):
        raise _Fault(wrong)
    if dtype is not None and result.dtype != dtype:
        raise _Fault(f"must return the dtype of its input, {dtype}; got {result.dtype}")
    if result.requires_grad:
        raise _Fault("has a gradient: F A multiplies grad log pi and must be constant. Use .detach()")
    if len(bad := (~result.isfinite().expand(valid.shape) & valid).nonzero()):
        index = tuple(bad[0].tolist())
        raise _Fault(f"must be finite; got {float(result.expand(valid.shape)[index])} {about(index)}")
    tensor: Tensor = result
    return tensor


def _token_text(tokens: Tokens) -> Callable[[Any], str]:
    def about(index: Any) -> str:
        ratio, old = float(tokens.ratio.detach()[index]), float(tokens.old_probs[index])
        return f"at ratio {ratio:.3g}, old probability {old:.2g} and advantage {float(tokens.advantages[index]):+g}"

    return about


def _per_token(call: Callable[[Tokens], Any], tokens: Tokens, dtype: Any) -> Tensor:
    return _tensor(
        _call_unchanged(call, tokens), [tuple(tokens.mask.shape)], dtype, tokens.mask.bool(), _token_text(tokens)
    )


def _check_split(call: Callable[[Tokens], Tensor], tokens: Tokens, *, whole_rows: bool, remedy: str = "") -> None:
    """Raise _Fault if a token's value depends on the other tokens of the batch."""
    every, half = slice(None), tokens.mask.shape[1] // 2
    pieces = [(slice(0, 2), every), (slice(2, 3), every), (slice(3, _ROWS), every)]
    pieces += [] if whole_rows else [(every, slice(0, half)), (every, slice(half, None))]
    of_batch = call(tokens).detach()
    for rows, columns in pieces:
        piece, expected = _select_rows(tokens, rows, columns), of_batch[rows][:, columns].double()
        result = call(piece).detach().double()
        alike = torch.isclose(expected, result, rtol=_ALIKE, atol=_ALIKE, equal_nan=True) | ~piece.mask.bool()
        if not bool(alike.all()):
            index = tuple((~alike).nonzero()[0].tolist())
            others = "rows of the batch" if columns == every else "tokens of its row"
            raise _Fault(
                f"depends on the other {others}: the token {_token_text(piece)(index)} gets "
                f"{float(expected[index]):.6g} in the whole batch and {float(result[index]):.6g} in a part of it, so "
                f"the gradient would depend on the size of micro-batches{remedy}"
            )


def _statistics(loss: PolicyLoss, tokens: Tokens) -> Tensor | None:
    return loss.statistics(tokens) if loss.needs_statistics else None


def _try_statistics(loss: PolicyLoss, method: Method) -> None:
    if not loss.needs_statistics:
        if type(loss).statistics is not PolicyLoss.statistics:
            raise _Fault("is never called: add `needs_statistics: ClassVar[bool] = True`, or remove it")
        return
    tokens = _tokens(loss)
    result = _call_unchanged(loss.statistics, tokens)
    if not isinstance(result, torch.Tensor):
        raise _Fault(f"must return a tensor; got {describe_value(result)}")
    turned: Any = loss.statistics(_select_rows(tokens, torch.arange(_ROWS - 1, -1, -1)))
    if not torch.allclose(result, turned, rtol=_ALIKE, atol=_ALIKE, equal_nan=True):
        raise _Fault("depends on the order of the rows: a step's rows come in any order, from several processes")


def _try_weight(loss: PolicyLoss, method: Method) -> None:
    for dtype in (torch.float64, torch.float32):
        tokens = _tokens(loss, dtype=dtype)
        learning = dataclasses.replace(tokens, log_probs=tokens.log_probs.clone().requires_grad_())
        _per_token(lambda step: loss.weight(step, _statistics(loss, step)), learning, dtype)
    tokens = _tokens(loss)
    statistics = _statistics(loss, tokens)
    remedy = (
        ". Compute numbers of the whole step in statistics() (needs_statistics = True); for a weight of whole rows "
        "set reads_whole_rows or per_sequence = True"
    )
    _check_split(lambda step: loss.weight(step, statistics), tokens, whole_rows=loss.reads_whole_rows, remedy=remedy)


def _try_penalty(loss: PolicyLoss, method: Method) -> None:
    tokens = _tokens(loss)
    statistics = _statistics(loss, tokens)
    _per_token(lambda step: loss.penalty(step, statistics), tokens, torch.float64)
    _check_split(lambda step: loss.penalty(step, statistics), tokens, whole_rows=loss.reads_whole_rows)


def _try_bounds(loss: PolicyLoss, method: Method) -> None:
    tokens = _tokens(loss)
    bounds = loss.bounds(tokens, _statistics(loss, tokens))
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise _Fault(f"must return (eps_low, eps_high); got {describe_value(bounds)}")
    for bound in bounds:
        try:
            finite = bool(torch.as_tensor(bound).expand(tokens.mask.shape).isfinite().all())
        except (RuntimeError, TypeError, ValueError):
            finite = False
        if not finite or isinstance(bound, bool):
            raise _Fault(f"must return finite numbers or tensors of the tokens' shape; got {describe_value(bound)}")


def _rollout(component: Part, method: Method) -> Rollout:
    """Return six groups of four rows: mixed rewards, all equal, one missing, all missing, negative, large."""
    nan = float("nan")
    rewards = torch.tensor(
        [0, 1, 0, 1, 1, 1, 1, 1, 1, nan, 0, 0.5, nan, nan, nan, nan, -1, 2, -3, 0.1, 1e4, 0, 0, 1e-6],
        dtype=torch.float64,
    )
    rows, length, generator = len(rewards), 7, torch.Generator().manual_seed(0)
    mask = (torch.arange(length) < length - torch.arange(rows).unsqueeze(1) % length).double()

    def drawn(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(rows, length, generator=generator).double()) * mask

    return Rollout(
        rewards=rewards,
        group_size=4,
        token_ids=torch.randint(0, 100, (rows, length), generator=generator),
        mask=mask,
        old_log_probs=drawn(-9, 0) if method.needs_rollout_log_probs else None,
        entropies=drawn(0, 5) if method.needs_rollout_entropies else None,
        ref_log_probs=drawn(-9, 0) if method.needs_reference else None,
        values=drawn(-1, 1) if method.advantage.needs_values else None,
        teacher_log_probs=drawn(-9, 0) if method.advantage.needs_teacher else None,
        correct=rewards.nan_to_num() > 0 if method.advantage.needs_correct else None,
        parts=torch.stack([rewards / 2, rewards.roll(1)], dim=1) if method.advantage.needs_parts else None,
        greedy_rewards=rewards.nan_to_num().roll(3) if method.advantage.needs_greedy else None,
        initial_entropy=2.0 if getattr(component, "needs_initial_entropy", False) else None,
    )


def _per_row(call: Callable[[Rollout], Any], rollout: Rollout) -> Tensor:
    rows, length = rollout.mask.shape
    result = _tensor(
        _call_unchanged(call, rollout), [(rows, 1), (rows, length)], None, rollout.mask.bool(), _row_text(rollout)
    )
    if not result.is_floating_point():
        raise _Fault(f"must return a floating-point tensor, as rollout.rewards; got {result.dtype}")
    unknown = rollout.rewards.isnan().unsqueeze(1) & rollout.mask.bool()
    if bool((result.expand(rows, length)[unknown] != 0).any()):
        raise _Fault("must be 0 for a completion whose reward is NaN, which is not trained on")
    return result


def _row_text(rollout: Rollout) -> Callable[[Any], str]:
    def about(index: Any) -> str:
        group = rollout.rewards.view(-1, rollout.group_size)[index[0] // rollout.group_size].tolist()
        return f"for a completion of reward {float(rollout.rewards[index[0]]):g} in a group of rewards {group}"

    return about


def _try_advantages(advantage: Advantage, method: Method) -> None:
    result = _per_row(advantage.advantages, _rollout(advantage, method))
    if result.shape[1] > 1 and not advantage.per_token:
        raise _Fault(f"differs between tokens: add `per_token: ClassVar[bool] = True`, or return ({len(result)}, 1)")


def _try_returns(advantage: Advantage, method: Method) -> None:
    rollout = _rollout(advantage, method)
    if advantage.needs_values:
        shape, valid = tuple(rollout.mask.shape), rollout.mask.bool()
        _tensor(_call_unchanged(advantage.returns, rollout), [shape], None, valid, _row_text(rollout))


def _try_shape(shaping: RolloutShaping, method: Method) -> None:
    rollout = _rollout(shaping, method)
    estimated = method.advantage.advantages(rollout)
    _per_row(lambda batch: shaping.shape(batch, estimated, estimated), rollout)


def _try_factor(shaping: TokenShaping, method: Method) -> None:
    for dtype in (torch.float64, torch.float32):
        tokens = _tokens(shaping, dtype=dtype)
        if bool(((_per_token(shaping.factor, tokens, dtype) < 0) & tokens.mask.bool()).any()):
            raise _Fault("must not be negative: a factor keeps the sign of the advantage")
    _check_split(shaping.factor, _tokens(shaping), whole_rows=False)


def _try_selected(passes: Passes, method: Method) -> None:
    names = passes.names
    if not isinstance(names, tuple) or not names or not all(isinstance(name, str) for name in names):
        raise _Fault(f"names must be a tuple of names; got {names!r:.60}")
    tokens = _tokens(passes)
    threshold = passes.threshold(_rollout(passes, method)) if passes.needs_rollout_log_probs else None
    if threshold is not None:
        tokens = dataclasses.replace(tokens, low_threshold=torch.full((_ROWS, 1), threshold, dtype=torch.float64))
    for pass_name in names:

        def selected(step: Tokens, pass_name: str = pass_name) -> Tensor:
            return passes.selected(step, pass_name)

        if bool((_per_token(selected, tokens, torch.bool) & ~tokens.mask.bool()).any()):
            raise _Fault(f"selects padding in the pass {pass_name}; it must select only tokens where tokens.mask is 1")
        _check_split(selected, tokens, whole_rows=False)


def _try_count(aggregation: Aggregation, method: Method) -> None:
    tokens = _tokens(aggregation)
    total = _call_unchanged(lambda step: aggregation.count(step.mask, step.advantages), tokens)
    _tensor(total, [()], torch.float64, torch.tensor(True), lambda index: "for a step")
    rows = [_select_rows(tokens, slice(row, row + 1)) for row in range(_ROWS)]
    added = sum(float(aggregation.count(row.mask, row.advantages)) for row in rows)
    if abs(added - float(total)) > _ALIKE * abs(added):
        raise _Fault(f"must be additive over rows; got {float(total):g} for six rows, {added:g} as the sum of each")


def _try_coefficients(aggregation: Aggregation, method: Method) -> None:
    aggregation, tokens = aggregation.with_length(1000), _tokens(aggregation)
    count = aggregation.count(tokens.mask, tokens.advantages)

    def coefficients(step: Tokens) -> Tensor:
        return aggregation.coefficients(step.mask, count)

    if bool((_per_token(coefficients, tokens, torch.float64)[~tokens.mask.bool()] != 0).any()):
        raise _Fault("must be 0 on padding, where tokens.mask is 0")
    _check_split(coefficients, tokens, whole_rows=True)


# The methods to try of each family, in this order.
_TRIES: Mapping[type[Part], Mapping[str, Callable[[Any, Method], None]]] = {
    PolicyLoss: {"statistics": _try_statistics, "weight": _try_weight, "penalty": _try_penalty, "bounds": _try_bounds},
    Advantage: {"advantages": _try_advantages, "returns": _try_returns},
    RolloutShaping: {"shape": _try_shape},
    TokenShaping: {"factor": _try_factor},
    Aggregation: {"count": _try_count, "coefficients": _try_coefficients},
    Passes: {"selected": _try_selected},
}


def _find_problems(tried: Part, method: Method) -> Iterator[str]:
    file = UserFile(Path(str(sys.modules[type(tried).__module__].__file__)), "")
    tries = next((tries for family, tries in _TRIES.items() if isinstance(tried, family)), {})
    for name, attempt in tries.items():
        try:
            with guard(file, f"{name} of {type(tried).__name__}", _TRIAL):
                attempt(tried, method)
        except _Fault as fault:
            where = function_line(getattr(type(tried), name), file)
            yield f"{where}: {type(tried).__name__}.{name} {fault} ({EXAMPLE})"
        except RunError as error:
            yield f"{error}{_ABOUT_NONE if 'NoneType' in str(error) else ''} ({EXAMPLE})"
            # Later problems would follow from this one.
            return
