"""The inner loop of ANTLR's parser prediction, written for speed; what it predicts is what the runtime's own does.

math-verify spends three quarters of its time in it; with this the pool needs half the processor time
(docs/verifiers.md). Differences from antlr4-python3-runtime 4.13: what is fixed in the grammar is looked up once,
configurations are copied without keyword arguments, and equal stacks are one object.
"""

from __future__ import annotations

from typing import Any, ClassVar

from antlr4.atn import ParserATNSimulator as simulator
from antlr4.atn.ATNConfig import ATNConfig
from antlr4.atn.ATNConfigSet import ATNConfigSet
from antlr4.atn.ATNState import ATNState, RuleStopState
from antlr4.atn.ParserATNSimulator import ParserATNSimulator
from antlr4.atn.PredictionMode import PredictionMode
from antlr4.atn.SemanticContext import SemanticContext
from antlr4.atn.Transition import ActionTransition, Transition
from antlr4.PredictionContext import PredictionContext, SingletonPredictionContext, merge
from latex2sympy2_extended import latex2sympy2
from latex2sympy2_extended.antlr_parser import PSParser

_NONE = SemanticContext.NONE
_EMPTY = PredictionContext.EMPTY
_EMPTY_RETURN = PredictionContext.EMPTY_RETURN_STATE

_EPSILON, _RULE, _TOKEN, _OTHER = range(4)
_KINDS = {
    Transition.EPSILON: _EPSILON,
    Transition.ACTION: _EPSILON,
    Transition.RULE: _RULE,
    Transition.ATOM: _TOKEN,
    Transition.RANGE: _TOKEN,
    Transition.SET: _TOKEN,
    Transition.NOT_SET: _TOKEN,
    Transition.WILDCARD: _TOKEN,
}


class _Configs(ATNConfigSet):
    """A set whose lookup is keyed by what makes two configurations the same."""

    def add(self, config: Any, mergeCache: Any = None) -> bool:
        semantic = config.semanticContext
        if semantic is not _NONE:
            self.hasSemanticContext = True
        if config.reachesIntoOuterContext > 0:
            self.dipsIntoOuterContext = True
        key = (config.state.stateNumber, config.alt, semantic)
        existing = self.configLookup.setdefault(key, config)
        if existing is config:
            self.cachedHashCode = -1
            self.configs.append(config)
            return True
        if existing.context is not config.context:
            existing.context = merge(existing.context, config.context, not self.fullCtx, mergeCache)
        if existing.reachesIntoOuterContext < config.reachesIntoOuterContext:
            existing.reachesIntoOuterContext = config.reachesIntoOuterContext
        if config.precedenceFilterSuppressed:
            existing.precedenceFilterSuppressed = True
        return True


def _table(atn: Any) -> list[Any]:
    """For each state: whether a rule ends there, whether to keep it, whether a loop starts there, its edges."""
    table: list[Any] = []
    for state in atn.states:
        if state is None:
            table.append(None)
            continue
        entry = state.stateType == ATNState.STAR_LOOP_ENTRY and state.isPrecedenceDecision
        edges = [
            (
                _KINDS.get(edge.serializationType, _OTHER),
                edge.target,
                edge.followState.stateNumber if edge.serializationType == Transition.RULE else 0,
                isinstance(edge, ActionTransition),
                edge,
            )
            for edge in state.transitions
        ]
        table.append((isinstance(state, RuleStopState), not state.epsilonOnlyTransitions, entry, edges))
    return table


def _copy(config: Any, state: Any, context: Any) -> Any:
    copy = ATNConfig.__new__(ATNConfig)
    copy.state = state
    copy.alt = config.alt
    copy.context = context
    copy.semanticContext = config.semanticContext
    copy.reachesIntoOuterContext = config.reachesIntoOuterContext
    copy.precedenceFilterSuppressed = config.precedenceFilterSuppressed
    return copy


def _pushed(context: Any, follow: int) -> Any:
    """``context`` with a return state on top: the same object for the same arguments."""
    try:
        children = context.children
    except AttributeError:
        children = context.children = {}
    child = children.get(follow)
    if child is None:
        child = children[follow] = SingletonPredictionContext(context, follow)
    return child


class _FastSimulator(ParserATNSimulator):
    """The runtime's simulator with another inner loop, and, where ``guesses``, without looking at what called a rule.

    Such a guess (ANTLR's SLL mode) gives the same tree or a syntax error. Decisions that turned out to need the
    callers are not guessed again.
    """

    needs_callers: ClassVar[set[int]] = set()
    tables: ClassVar[dict[int, list[Any]]] = {}

    def __init__(self, parser: Any, atn: Any, decisions: Any, cache: Any) -> None:
        super().__init__(parser, atn, decisions, cache)
        self.guesses = True
        if id(atn) not in self.tables:
            self.tables[id(atn)] = _table(atn)
        self.table = self.tables[id(atn)]

    def adaptivePredict(self, input: Any, decision: int, outerContext: Any) -> Any:
        guess = self.guesses and decision not in self.needs_callers
        self.predictionMode = PredictionMode.SLL if guess else PredictionMode.LL
        return super().adaptivePredict(input, decision, outerContext)

    def execATNWithFullContext(self, dfa: Any, D: Any, s0: Any, input: Any, startIndex: int, outerContext: Any) -> Any:
        found = super().execATNWithFullContext(dfa, D, s0, input, startIndex, outerContext)
        if found != D.prediction:
            self.needs_callers.add(dfa.decision)
        return found

    def closureCheckingStopState(
        self,
        config: Any,
        configs: Any,
        closureBusy: set[Any],
        collectPredicates: bool,
        fullCtx: bool,
        depth: int,
        treatEofAsEpsilon: bool,
    ) -> None:
        _walk(self, self.table, config, configs, closureBusy, collectPredicates, fullCtx, depth, treatEofAsEpsilon)


class _FastParser(PSParser):
    def __init__(self, input: Any) -> None:
        super().__init__(input)
        self._interp = _FastSimulator(self, self.atn, self.decisionsToDFA, self.sharedContextCache)

    def math(self) -> Any:
        # All tokens first: text that is none is an error, and would be passed over at the second attempt.
        self._input.fill()
        try:
            return super().math()
        except MemoryError:
            raise
        except Exception:
            # A guess may have been wrong: once more without any.
            self.reset()
            self.state = -1
            self._interp.guesses = False
            return super().math()


def _walk(
    sim: Any,
    table: list[Any],
    config: Any,
    configs: Any,
    busy: set[Any],
    collect: bool,
    full: bool,
    depth: int,
    end_is_epsilon: bool,
) -> None:
    ends, kept, entry, edges = table[config.state.stateNumber]
    if ends:
        context = config.context
        if context.isEmpty():
            if full:
                configs.add(config, sim.mergeCache)
            else:
                sim.closure_(config, configs, busy, collect, full, depth, end_is_epsilon)
            return
        for index in range(len(context)):
            number = context.getReturnState(index)
            # `==` for the runtime's `is`: there, an equal number that is another object would be an index error.
            if number == _EMPTY_RETURN:
                if full:
                    configs.add(_copy(config, config.state, _EMPTY), sim.mergeCache)
                else:
                    sim.closure_(config, configs, busy, collect, full, depth, end_is_epsilon)
                continue
            popped = _copy(config, sim.atn.states[number], context.getParent(index))
            popped.precedenceFilterSuppressed = False
            _walk(sim, table, popped, configs, busy, collect, full, depth - 1, end_is_epsilon)
        return
    if kept:
        configs.add(config, sim.mergeCache)
    if entry and sim.canDropLoopEntryEdgeInLeftRecursiveRule(config):
        edges = edges[1:]
    for kind, target, follow, action, edge in edges:
        collecting = collect and not action
        if kind == _EPSILON:
            reached = _copy(config, target, config.context)
            _walk(sim, table, reached, configs, busy, collecting, full, depth, end_is_epsilon)
            continue
        if kind == _RULE:
            reached = _copy(config, target, _pushed(config.context, follow))
            deeper = depth + 1 if depth >= 0 else depth
            _walk(sim, table, reached, configs, busy, collecting, full, deeper, end_is_epsilon)
            continue
        if kind == _TOKEN and not end_is_epsilon:
            continue
        reached = sim.getEpsilonTarget(config, edge, collecting, depth == 0, full, end_is_epsilon)
        if reached is None:
            continue
        if not edge.isEpsilon:
            if reached in busy:
                continue
            busy.add(reached)
        _walk(sim, table, reached, configs, busy, collecting, full, depth, end_is_epsilon)


def install() -> None:
    """Have math-verify's reader parse with it, in this process."""
    simulator.ATNConfigSet = _Configs
    latex2sympy2.PSParser = _FastParser
