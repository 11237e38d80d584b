"""Arithmetic that knows nothing of models or data, and what it may take of the machine.

May import: nothing.
"""
