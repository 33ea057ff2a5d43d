"""`rlvr analyze`: one file an analysis, each giving numbers, tables, a figure and how to read it."""
