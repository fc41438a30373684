"""Several trainings of one config: seeds, and the search for its fastest settings."""
