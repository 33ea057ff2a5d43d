"""The configuration of a run: schema, loading with layers and origins, errors. Imports no torch."""
