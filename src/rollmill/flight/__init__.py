"""The flight log: every free choice of a run, in the order in which it was made."""
