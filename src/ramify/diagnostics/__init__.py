"""Whether to trust a fit: importance weights of theta and of every group, and a verdict in words.

Imports everything up to `posterior`.
"""
