"""Which runs are compared, what they were evaluated on and what they cost: records from disk. Imports no torch."""
