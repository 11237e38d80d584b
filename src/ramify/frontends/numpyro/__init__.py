"""Models from NumPyro functions, unchanged."""
