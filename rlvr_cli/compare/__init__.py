"""Which arm is better, by how much, and how sure that is: scores, contrasts, sentences and tables. Imports no torch."""
