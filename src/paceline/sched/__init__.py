"""The scheduler: which sequences run in each step, and how many positions they compute."""
