"""Claims of five papers, tested on small models by rules written before the runs."""
