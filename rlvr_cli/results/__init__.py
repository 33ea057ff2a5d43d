"""What a run's results are called, how they are read, and what pictures of them have in common."""
