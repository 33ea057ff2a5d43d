"""Estimators and their uncertainty. Pure functions on numpy arrays."""
