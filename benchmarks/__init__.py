"""Ours against the peers, in alternation; see README.md in this folder."""
