"""Countdown: reach a target with given numbers."""

from rlvr_cli.tasks.countdown.task import Countdown

__all__ = ["Countdown"]
