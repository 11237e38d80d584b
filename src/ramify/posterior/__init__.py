"""What a fit answers: draws, predictions, summaries, metrics, and which rows each is conditioned on.

Imports everything up to `inference`.
"""
