"""Processes: starting them, ending them with their parent, and finding those that hang or were left over."""
