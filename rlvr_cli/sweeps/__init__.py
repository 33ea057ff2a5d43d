"""Sweeps: many training runs from one file, each run exactly once, even after a crash."""
