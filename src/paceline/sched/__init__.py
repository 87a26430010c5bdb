"""The heart: who computes how much in every step, and why."""
