"""Mathematics with a boxed answer."""
