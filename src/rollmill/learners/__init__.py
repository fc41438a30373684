"""Turning batches into weights."""
