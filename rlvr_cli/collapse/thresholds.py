"""What counts as a collapse: every number of the rules. docs/collapse.md says how they were chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """The numbers of the rules in rules.py and reward.py; factors are of the run's own start."""

    # The start of a run: this many first rollouts; what fell is compared with the highest of them, what rose with the
    # lowest.
    start: int = 3
    # Rollouts that are looked at together, so that a pattern has lasted for most of them when it is named: this many,
    # and with few prompts in a rollout as many as have this number of problems, below which accuracy is too noisy.
    window: int = 5
    window_problems: int = 80
    # One rollout in so many of a window may differ from what is said of the others.
    others: int = 5

    # Accuracy fell: by this share of the best that the run had over a window, and by this many standard errors.
    accuracy_drop: float = 0.2
    accuracy_errors: float = 2.5
    # An accuracy that is no higher than at the start is no harm where it was this high.
    solved: float = 0.8

    # Lengths differ by 10% between rollouts of one policy; half and double are far outside.
    shorter: float = 0.5
    longer: float = 2.0
    # Most completions are cut at the limit, and few were at the start.
    mostly_cut: float = 0.5
    seldom_cut: float = 0.25

    # Entropy falls in every training that succeeds, to a quarter on the lab: it is a collapse only where the
    # completions of a problem have become alike too, and accuracy is not better for it.
    entropy_lower: float = 0.5
    alike: float = 0.8
    entropy_higher: float = 2.0

    # The well-formed share fell by this much of all completions from its best, and by this many standard errors: the
    # best of many windows is high by chance, hence more than accuracy's, which no rule takes alone.
    format_drop: float = 0.2
    format_errors: float = 4.5

    # Reward hacking: rollouts before and rollouts since; windows of fewer problems have too rough a standard error.
    fewest_problems: int = 16
    reward_windows: tuple[tuple[int, int], ...] = ((2, 5), (5, 5), (10, 10), (20, 20), (40, 40))
    # The rise of the format's reward in standard errors and in shares of its range, and what share of it accuracy
    # would have to keep up with, by how many standard errors.
    rise_errors: float = 4.5
    smallest_rise: float = 0.02
    lag: float = 0.25
    flat_errors: float = 3.0

    # Broken at once: so many rollouts in a row without a right and without a well-formed completion, of which there was
    # this share before.
    broken: int = 2
    formed: float = 0.5

    # A pattern that comes again within this many rollouts is not told again.
    pause: int = 10

    def rollouts(self, problems: int) -> int:
        """Rollouts of a window where each has as many ``problems``."""
        return max(self.window, -(-self.window_problems // problems))
