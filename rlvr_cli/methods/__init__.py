"""Policy-gradient methods as pure functions: advantage, policy loss, shaping, aggregation, passes."""
