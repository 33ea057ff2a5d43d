"""Worker processes for jobs in JSON, killed at their limits: judges and user code."""
