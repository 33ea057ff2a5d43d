"""Studies whose numbers the documentation quotes."""
