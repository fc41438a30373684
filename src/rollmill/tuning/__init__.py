"""Finding the fastest setting of a config on this machine, by short trainings in processes of their own."""
