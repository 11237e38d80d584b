"""What a model is: named parameters, three log densities, and what is known of their structure.

An adapter stands beside the model: it reads tables for it and names its results.

May import: numerics, data.
"""
