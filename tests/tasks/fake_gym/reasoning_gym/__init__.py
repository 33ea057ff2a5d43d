"""A package of reasoning-gym's form, with the faults that its verifiers have; tests put it in that one's place."""
