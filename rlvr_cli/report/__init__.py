"""Figures and pages of runs, evaluations and comparisons."""
