"""One config trained with several seeds: a folder of ordinary runs, made in turn or side by side."""
