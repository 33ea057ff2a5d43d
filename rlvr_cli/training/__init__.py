"""Training: a thin layer over TRL, exact checkpoints, progress."""
