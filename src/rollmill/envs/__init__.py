"""Environments as groups: K of them stepped as one batch under one contract, and the function that makes them."""
