"""Experiment trackers: send the metrics of runs and evaluations to W&B, MLflow, TensorBoard and trackio."""
