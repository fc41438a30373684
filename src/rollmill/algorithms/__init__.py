"""One file per algorithm, each readable from top to bottom; none knows of processes, files or devices."""
