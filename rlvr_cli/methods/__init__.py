"""Policy-gradient methods as pure functions: advantage, token weight, shaping, aggregation, schedule."""
