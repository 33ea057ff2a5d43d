"""What runs left behind, looked at closely: one file an analysis. Each registers itself by being defined."""
