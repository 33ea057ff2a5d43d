"""Countdown: reach a target with given numbers."""
