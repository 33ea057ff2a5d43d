"""The configuration of a run: schema, layered loading with origins, errors. Imports no torch."""
