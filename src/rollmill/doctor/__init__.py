"""Checks before training: everything that can be refused is refused here."""
