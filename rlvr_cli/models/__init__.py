"""Loading models and sampling completions from them."""
