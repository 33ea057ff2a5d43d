"""Judging mathematics safely: what an answer is, when two are equal, and the processes that may be killed over it."""
