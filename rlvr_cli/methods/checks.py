"""Tries the parts of a method that are of files of the user's own on made-up tokens, before anything is trained.

What is looked for: another shape, dtype or type than documented, a number that is not finite, a gradient through F, a
result that depends on how a batch was split, inputs that are changed, random numbers that nobody seeds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.base import (
    Advantage,
    Part,
    PolicyLoss,
    Rollout,
    RolloutShaping,
    Shaping,
    Tokens,
    TokenShaping,
    is_own,
)
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import AnyMethod, Method
from rlvr_cli.methods.own import PAGE, function_line

# Natural logarithms of ratio and old probability: the probability of a token is the product of the two, at most 1.
_LOG_RATIOS = (-20.0, -5.0, -1.0, -0.3, -0.1, -0.01, 0.0, 0.01, 0.1, 0.3, 1.0, 5.0, 20.0)
_LOG_OLD = (-27.0, -9.0, -3.0, -1.0, -0.35, -0.02, -1e-4)
_ROWS = 6
# Two results that a different order of additions may tell apart, in float64.
_ALIKE = 1e-9

# What a stand-in of a class says in place of being tried (recorded.py).
ONE_ON_POLICY = "one_on_policy"

_tried: set[tuple[Any, ...]] = set()


class _Fault(Exception):
    """What is wrong with a part's method."""


def check_own_parts(of: AnyMethod) -> None:
    """Try every part that is of a file of the user's own and has a say. Raises UserError with all that is wrong."""
    method = of.policy
    if method is None:
        return
    problems: list[str] = []
    for part in method.parts:
        if not is_own(part) or (isinstance(part, Shaping) and not part.is_on):
            continue
        key = (type(part), repr(part), method.needs_reference, method.needs_rollout_log_probs)
        if key not in _tried:
            found = list(_problems(part, method))
            problems += found
            if not found:
                _tried.add(key)
    if problems:
        raise UserError(problems)


def weighs_one_on_policy(loss: PolicyLoss) -> bool:
    """Whether F is 1 wherever the ratio is 1, as that of every built-in policy loss."""
    if not is_own(loss):
        return True
    if (recorded := getattr(loss, ONE_ON_POLICY, None)) is not None:
        return bool(recorded)
    tokens = _tokens(loss, log_ratios=(0.0,))
    try:
        weight = loss.weight(tokens, loss.statistics(tokens) if loss.needs_statistics else None)
        return bool((weight == 1)[tokens.mask.bool()].all())
    except RunError:
        return False


def _problems(part: Part, method: Method) -> Iterator[str]:
    tries: Sequence[tuple[str, Callable[[], None]]]
    if isinstance(part, PolicyLoss):
        tries = (
            ("statistics", lambda: _try_statistics(part)),
            ("weight", lambda: _try_weight(part)),
            ("bounds", lambda: _try_bounds(part)),
        )
    elif isinstance(part, Advantage):
        tries = (("advantages", lambda: _try_advantages(part, method)),)
        if part.needs_values:
            tries += (("returns", lambda: _try_returns(part, method)),)
    elif isinstance(part, RolloutShaping):
        tries = (("shape", lambda: _try_shape(part, method)),)
    elif isinstance(part, TokenShaping):
        tries = (("factor", lambda: _try_factor(part)),)
    elif isinstance(part, Aggregation):
        tries = (("count", lambda: _try_count(part)), ("coefficients", lambda: _try_coefficients(part)))
    elif isinstance(part, Passes):
        tries = (("selected", lambda: _try_selected(part, method)),)
    else:
        tries = ()
    for name, attempt in tries:
        try:
            attempt()
        except _Fault as fault:
            yield f"{function_line(part, name)}: {type(part).__name__}.{name} {fault} ({PAGE})"
        except RunError as error:
            hint = " What is None is there where the class says that it needs it." if "NoneType" in str(error) else ""
            yield f"{error}{hint} ({PAGE})"
            # The next ones would say the same.
            return


def _tokens(part: Part, *, log_ratios: Sequence[float] = _LOG_RATIOS, dtype: Any = None) -> Tokens:
    """A step of six rows of different lengths with every pair of ratio and old probability, for both signs of A."""
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
        "entropies": entropies if getattr(part, "needs_entropies", False) else None,
    }
    return Tokens(**{name: None if value is None else value.to(kind) for name, value in values.items()})  # type: ignore[arg-type]


def _rows(tokens: Tokens, index: Any, columns: Any = slice(None)) -> Tokens:
    cut = {
        field.name: value[index][:, columns if value.shape[1] > 1 else slice(None)]
        for field in dataclasses.fields(tokens)
        if (value := getattr(tokens, field.name)) is not None
    }
    return dataclasses.replace(tokens, **cut)


@dataclass
class _Watched:
    """The tensors of an input, and the state of the random numbers, before a call."""

    tensors: dict[str, tuple[Tensor, Tensor]]
    torch_state: Tensor
    python_state: Any

    @classmethod
    def of(cls, given: Any) -> _Watched:
        named = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
        tensors = {name: (value, value.clone()) for name, value in named.items() if isinstance(value, torch.Tensor)}
        return cls(tensors, torch.get_rng_state(), random.getstate())

    def check(self) -> None:
        changed = [name for name, (now, before) in self.tensors.items() if not _same(now, before)]
        if changed:
            raise _Fault(f"changes its input {', '.join(changed)}: make new tensors, as `x = x * 2` and not `x *= 2`")
        if not torch.equal(torch.get_rng_state(), self.torch_state) or random.getstate() != self.python_state:
            raise _Fault(
                "draws random numbers: two runs of one seed would differ. The result must follow from its input"
            )


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(((first == second) | (first.isnan() & second.isnan())).all())


def _called(call: Callable[[Any], Any], given: Any) -> Any:
    """The result for an input that must stay as it is; the same when asked again."""
    watched = _Watched.of(given)
    first = call(given)
    watched.check()
    again = call(given)
    if (
        isinstance(first, torch.Tensor)
        and isinstance(again, torch.Tensor)
        and not _same(first.detach(), again.detach())
    ):
        raise _Fault("gives two results for one input: the result must follow from the input alone")
    return first


def _tensor(
    found: Any, shapes: Sequence[tuple[int, ...]], dtype: Any, valid: Tensor, about: Callable[[Any], str]
) -> Tensor:
    """What a method returned, where it is a finite tensor of one of the shapes."""
    if not isinstance(found, torch.Tensor):
        raise _Fault(f"returned {found!r:.60} ({type(found).__name__}); a tensor is wanted")
    allowed = " or ".join(map(str, shapes))
    if tuple(found.shape) not in shapes:
        raise _Fault(f"returned shape {tuple(found.shape)} for tokens of shape {tuple(valid.shape)}; wanted: {allowed}")
    if dtype is not None and found.dtype != dtype:
        raise _Fault(f"returned {found.dtype} for {dtype}; keep the dtype of the input")
    if found.requires_grad:
        raise _Fault("has a gradient: F A is what multiplies grad log pi and must be constant. Use .detach()")
    if found.is_floating_point():
        bad = ~found.isfinite().expand(valid.shape) & valid
        if bool(bad.any()):
            place = tuple(bad.nonzero()[0].tolist())
            raise _Fault(f"is {float(found.expand(valid.shape)[place])} {about(place)}: it must be finite there")
    return found


def _at(tokens: Tokens) -> Callable[[Any], str]:
    def about(place: Any) -> str:
        ratio, old = float(tokens.ratio.detach()[place]), float(tokens.old_probs[place])
        return f"at ratio {ratio:.3g}, old probability {old:.2g} and advantage {float(tokens.advantages[place]):+g}"

    return about


def _weight(part: PolicyLoss, tokens: Tokens) -> Tensor:
    statistics = part.statistics(tokens) if part.needs_statistics else None
    result: Tensor = part.weight(tokens, statistics)
    return result


def _try_statistics(part: PolicyLoss) -> None:
    if not part.needs_statistics:
        defined = next(base for base in type(part).__mro__ if "statistics" in vars(base) and base.__name__ != "Guarded")
        if defined is not PolicyLoss:
            raise _Fault("is never asked: add `needs_statistics: ClassVar[bool] = True`, or take it out")
        return
    tokens = _tokens(part)
    found = _called(part.statistics, tokens)
    if not isinstance(found, torch.Tensor):
        raise _Fault(f"returned {found!r:.60} ({type(found).__name__}); a tensor is wanted")
    order = torch.arange(_ROWS - 1, -1, -1)
    turned = part.statistics(_rows(tokens, order))
    assert turned is not None
    if not torch.allclose(found, turned, rtol=_ALIKE, atol=_ALIKE, equal_nan=True):
        raise _Fault("depends on the order of the rows: a step's rows come in any order, from several processes")


def _try_weight(part: PolicyLoss) -> None:
    for dtype in (torch.float64, torch.float32):
        tokens = _tokens(part, dtype=dtype)
        learning = dataclasses.replace(tokens, log_probs=tokens.log_probs.clone().requires_grad_())
        found = _called(lambda given: _weight(part, given), learning)
        valid = tokens.mask.bool()
        _tensor(found, [tuple(tokens.log_probs.shape)], dtype, valid, _at(tokens))
    tokens = _tokens(part)
    statistics = part.statistics(tokens) if part.needs_statistics else None
    _split(lambda given: part.weight(given, statistics), tokens, whole_rows=part.reads_whole_rows, loss=True)


def _split(call: Callable[[Tokens], Tensor], tokens: Tokens, *, whole_rows: bool, loss: bool = False) -> None:
    """Refuse what gives a token another value when other tokens of the step are elsewhere."""
    whole, valid = call(tokens).detach(), tokens.mask.bool()
    for index in (slice(0, 2), slice(2, 3), slice(3, _ROWS)):
        part = call(_rows(tokens, index)).detach()
        _compare(whole[index], part, valid[index], "rows of the batch", _rows(tokens, index), loss)
    if not whole_rows:
        half = valid.shape[1] // 2
        for columns in (slice(0, half), slice(half, None)):
            cut = _rows(tokens, slice(None), columns)
            _compare(whole[:, columns], call(cut).detach(), valid[:, columns], "tokens of its row", cut, loss)


def _compare(whole: Tensor, part: Tensor, valid: Tensor, what: str, tokens: Tokens, loss: bool) -> None:
    if part.shape != whole.shape:
        raise _Fault(f"returned shape {tuple(part.shape)} for tokens of shape {tuple(whole.shape)}")
    alike = torch.isclose(whole.double(), part.double(), rtol=_ALIKE, atol=_ALIKE, equal_nan=True) | ~valid
    if not bool(alike.all()):
        place = tuple((~alike).nonzero()[0].tolist())
        remedy = ""
        if loss:
            remedy = (
                ". What is known of the whole step comes from statistics() (needs_statistics = True)"
                if what.startswith("rows")
                else ". A weight of whole rows says `reads_whole_rows` or per_sequence = True"
            )
        raise _Fault(
            f"depends on the other {what}: the token {_at(tokens)(place)} gets {float(whole[place]):.6g} in the whole "
            f"batch and {float(part[place]):.6g} in a part of it, so that the gradient would depend on the size of "
            f"micro-batches{remedy}"
        )


def _try_bounds(part: PolicyLoss) -> None:
    tokens = _tokens(part)
    found = part.bounds(tokens, part.statistics(tokens) if part.needs_statistics else None)
    if not isinstance(found, tuple) or len(found) != 2:
        raise _Fault(f"returned {found!r:.60}; (eps_low, eps_high) is wanted")
    for bound in found:
        if isinstance(bound, torch.Tensor):
            try:
                bound.expand(tokens.log_probs.shape)
            except RuntimeError:
                raise _Fault(f"returned shape {tuple(bound.shape)}, which is not that of the tokens") from None
            finite = bool(bound.isfinite().all())
        elif isinstance(bound, (int, float)) and not isinstance(bound, bool):
            finite = abs(bound) < float("inf")
        else:
            raise _Fault(f"returned {bound!r:.60} ({type(bound).__name__}); a number or a tensor is wanted")
        if not finite:
            raise _Fault(f"returned {bound!r:.60}: a bound must be finite")


def _rollout(part: Part, method: Method) -> Rollout:
    """Six groups of four rows: mixed rewards, all equal, one row without a reward, none with one, negative, large."""
    nan = float("nan")
    rewards = torch.tensor(
        [0, 1, 0, 1, 1, 1, 1, 1, 1, nan, 0, 0.5, nan, nan, nan, nan, -1, 2, -3, 0.1, 1e4, 0, 0, 1e-6],
        dtype=torch.float64,
    )
    rows, length, generator = len(rewards), 7, torch.Generator().manual_seed(0)
    mask = (torch.arange(length) < length - torch.arange(rows).unsqueeze(1) % length).double()

    def drawn(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(rows, length, generator=generator).double()) * mask

    loss: Any = part
    return Rollout(
        rewards=rewards,
        group_size=4,
        token_ids=torch.randint(0, 100, (rows, length), generator=generator),
        mask=mask,
        old_log_probs=drawn(-9, 0) if method.needs_rollout_log_probs else None,
        entropies=drawn(0, 5) if method.needs_rollout_entropies else None,
        ref_log_probs=drawn(-9, 0) if method.needs_reference else None,
        values=drawn(-1, 1) if method.advantage.needs_values else None,
        correct=rewards.nan_to_num() > 0 if method.advantage.needs_correct else None,
        initial_entropy=2.0 if getattr(loss, "needs_initial_entropy", False) else None,
    )


def _rollout_result(call: Callable[[Rollout], Any], rollout: Rollout) -> Tensor:
    rows, length = rollout.mask.shape
    known = ~rollout.rewards.isnan().unsqueeze(1)

    def about(place: Any) -> str:
        group = rollout.rewards.view(-1, rollout.group_size)[place[0] // rollout.group_size].tolist()
        return f"for a completion of reward {float(rollout.rewards[place[0]]):g} in a group of rewards {group}"

    found = _tensor(_called(call, rollout), [(rows, 1), (rows, length)], None, rollout.mask.bool(), about)
    if not found.is_floating_point():
        raise _Fault(f"returned {found.dtype}; numbers with decimals are wanted, as rollout.rewards has them")
    if bool((torch.where(known, 0.0, found.double()) != 0).expand(rows, length)[rollout.mask.bool()].any()):
        raise _Fault("is not 0 for a completion whose reward is NaN, which must not be learned from")
    return found


def _try_advantages(part: Advantage, method: Method) -> None:
    rollout = _rollout(part, method)
    found = _rollout_result(part.advantages, rollout)
    if found.shape[1] > 1 and not part.per_token:
        raise _Fault(f"gives each token its own: add `per_token: ClassVar[bool] = True`, or return ({len(found)}, 1)")


def _try_returns(part: Advantage, method: Method) -> None:
    rollout = _rollout(part, method)

    def about(place: Any) -> str:
        return f"for a completion of reward {float(rollout.rewards[place[0]]):g}"

    _tensor(_called(part.returns, rollout), [tuple(rollout.mask.shape)], None, rollout.mask.bool(), about)


def _try_shape(part: RolloutShaping, method: Method) -> None:
    rollout = _rollout(part, method)
    estimated = method.advantage.advantages(rollout)
    _rollout_result(lambda given: part.shape(given, estimated, estimated), rollout)


def _try_factor(part: TokenShaping) -> None:
    for dtype in (torch.float64, torch.float32):
        tokens = _tokens(part, dtype=dtype)
        found = _called(part.factor, tokens)
        _tensor(found, [tuple(tokens.log_probs.shape)], dtype, tokens.mask.bool(), _at(tokens))
        if bool(((found < 0) & tokens.mask.bool()).any()):
            raise _Fault("is negative: a factor leaves the sign of the advantage alone")
    _split(part.factor, _tokens(part), whole_rows=False)


def _try_selected(part: Passes, method: Method) -> None:
    names = part.names
    if not isinstance(names, tuple) or not names or not all(isinstance(name, str) for name in names):
        raise _Fault(f"has no passes: names is {names!r:.60}, and must be a tuple of names")
    tokens = _tokens(part)
    threshold = part.threshold(_rollout(part, method)) if part.needs_old_log_probs_of_the_rollout else None
    if threshold is not None:
        tokens = dataclasses.replace(tokens, low_threshold=torch.full((_ROWS, 1), threshold, dtype=torch.float64))
    for which in names:
        found = _called(lambda given, name=which: part.selected(given, name), tokens)  # type: ignore[misc]
        _tensor(found, [tuple(tokens.log_probs.shape)], torch.bool, tokens.mask.bool(), _at(tokens))
        if bool((found & ~tokens.mask.bool()).any()):
            raise _Fault(f"takes padding into the pass {which}: only tokens where tokens.mask is 1 are there")
        _split(lambda given, name=which: part.selected(given, name), tokens, whole_rows=False)  # type: ignore[misc]


def _try_count(part: Aggregation) -> None:
    tokens = _tokens(part)
    whole = _called(lambda given: part.count(given.mask, given.advantages), tokens)
    _tensor(whole, [()], torch.float64, torch.tensor(True), lambda place: "for a step")
    rows = [_rows(tokens, slice(row, row + 1)) for row in range(_ROWS)]
    added = sum(float(part.count(row.mask, row.advantages)) for row in rows)
    if abs(added - float(whole)) > _ALIKE * abs(added):
        raise _Fault(f"is {float(whole):g} for six rows, and {added:g} for each of them added up: it must add up")


def _try_coefficients(part: Aggregation) -> None:
    part = part.with_length(1000)
    tokens = _tokens(part)
    count = part.count(tokens.mask, tokens.advantages)
    found = _called(lambda given: part.coefficients(given.mask, count), tokens)
    _tensor(found, [tuple(tokens.mask.shape)], torch.float64, tokens.mask.bool(), _at(tokens))
    if bool((found[~tokens.mask.bool()] != 0).any()):
        raise _Fault("is not 0 on padding, where tokens.mask is 0")
    _split(lambda given: part.coefficients(given.mask, count), tokens, whole_rows=True)
