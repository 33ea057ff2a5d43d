"""Compare reinforcement-learning methods on tasks whose answers can be checked."""

__version__ = "0.1.0"
