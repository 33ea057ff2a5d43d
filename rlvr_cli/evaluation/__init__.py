"""Sampled evaluation: what to sample, the records of it, and the numbers made from them."""
