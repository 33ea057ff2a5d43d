"""What a run's results are called and how they are read."""
