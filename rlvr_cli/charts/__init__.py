"""Shared code of charts: style and files; lines, panels and axes."""
