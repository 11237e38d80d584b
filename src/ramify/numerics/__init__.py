"""Arithmetic that knows nothing of models or data, and its limits on memory and threads.

May import: nothing.
"""
