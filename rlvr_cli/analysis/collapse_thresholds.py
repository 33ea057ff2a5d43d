"""What counts as a collapse: every number of the rules. docs/collapse.md says how they were chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """The numbers of the rules in collapse_rules.py and collapse_reward.py; factors are of the run's own start."""

    # The start of a run: the median of this many first rollouts, so that one odd rollout does not set it.
    start: int = 3
    # Rollouts that are looked at together, so that a pattern has lasted for most of them when it is named.
    window: int = 5
    # A standard error from fewer problems than this in a window is too rough: shares are not compared.
    fewest_problems: int = 16

    # Accuracy fell: by this share of the best that the run had over a window, and by this many standard errors.
    accuracy_drop: float = 0.2
    accuracy_errors: float = 2.0

    # Lengths differ by 10% between rollouts of one policy; half and double are far outside.
    shorter: float = 0.5
    longer: float = 2.0
    # Most completions are cut at the limit, and few were at the start.
    mostly_cut: float = 0.5
    seldom_cut: float = 0.25

    # Entropy falls in every training that succeeds, to a quarter on the lab: it is a collapse only where the
    # completions of a group have become alike and accuracy fell.
    entropy_lower: float = 1 / 3
    alike: float = 2 / 3
    entropy_higher: float = 2.0

    # The well-formed share fell by this much of all completions from its best, and by this many standard errors: the
    # best of many windows is high by chance, hence more than accuracy's, which no rule takes alone.
    format_drop: float = 0.2
    format_errors: float = 4.5

    # Reward hacking: rollouts before and rollouts since, the rise of the format's reward in standard errors and in
    # shares of its range, and what share of it accuracy would have to keep up with, by how many standard errors.
    reward_windows: tuple[tuple[int, int], ...] = ((2, 5), (5, 5), (10, 10), (20, 20), (40, 40))
    rise_errors: float = 4.5
    smallest_rise: float = 0.02
    lag: float = 0.25
    flat_errors: float = 3.0

    # A pattern that comes again within this many rollouts is not told again.
    pause: int = 10
