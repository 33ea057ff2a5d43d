"""Grade-school word problems with a number as the answer."""
