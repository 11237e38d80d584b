"""Other ways to say a model: NumPyro functions and formulas."""
