"""What a model is: named parameters, three log densities, and what is known of their structure.

Imports `numerics` and `data`.
"""
