"""Environments as groups: K of them stepped as one batch under one contract, and the one door that makes them."""
