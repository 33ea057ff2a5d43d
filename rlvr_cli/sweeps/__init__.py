"""Sweeps: many trainings from one file, each done once, whatever is killed on the way."""
