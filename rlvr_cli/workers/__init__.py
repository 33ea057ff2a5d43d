"""Processes that answer jobs with JSON, and may be killed over any of them: who judges, in a process of its own."""
