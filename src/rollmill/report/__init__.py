"""Reports on runs, from their files alone."""
