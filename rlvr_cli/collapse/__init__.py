"""Detect the collapse of a policy in the records of a training."""
