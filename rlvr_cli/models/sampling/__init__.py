"""Sampling completions: the local sampler, transformers' `generate`, and vLLM."""
