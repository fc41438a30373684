"""The run folder and its checkpoints: written whole or not at all, checked when they are read."""
