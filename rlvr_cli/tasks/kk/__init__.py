"""Knights & Knaves puzzles."""
