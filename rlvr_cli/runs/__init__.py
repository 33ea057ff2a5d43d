"""A run on disk: its directory, records, checkpoints and manifest."""
