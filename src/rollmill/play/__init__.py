"""Playing a policy, a script or chance: evaluate, film and watch."""
