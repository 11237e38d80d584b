"""Files: the folder of a saved fit, and results as ArviZ keeps them.

`folder` imports no JAX, so that the command can check a place before it starts to work.
"""
