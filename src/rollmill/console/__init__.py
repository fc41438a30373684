"""What a person sees of a run in a terminal."""
