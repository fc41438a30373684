"""What is shown and kept of a run: event records, and the observers that receive them."""
