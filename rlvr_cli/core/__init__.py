"""Shared utilities, independent of methods, tasks, schedulers and engines."""
