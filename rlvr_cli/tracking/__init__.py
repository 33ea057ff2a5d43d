"""Experiment trackers: the numbers of runs and evaluations sent to W&B, MLflow, TensorBoard and trackio."""
