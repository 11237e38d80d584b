"""The paper, reproduced: `python -m experiments --help`, and README.md beside this file.

Agrawal and Domke, "Amortized Variational Inference for Simple Hierarchical Models", NeurIPS 2021.
Uses only the public names of ramify and what its users have installed.
"""
