"""Analyses of recorded runs, one file each; an analysis registers itself by defining `ANALYSIS`."""
