"""Worker processes for jobs in JSON, killed at their limits: judges, user code and templates."""
