"""Models from formulas such as `y ~ 1 + x + (1 + x | user)`."""
