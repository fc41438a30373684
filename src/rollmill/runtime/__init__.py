"""Running a graph of components: in one process, or in many."""
