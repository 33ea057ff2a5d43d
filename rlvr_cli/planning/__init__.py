"""Estimates of a training before it starts: parameters, memory, time. Pure arithmetic, without torch."""
