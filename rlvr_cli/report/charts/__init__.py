"""The charts of a report: inline SVG in the colours of the page, and the same numbers as text."""
