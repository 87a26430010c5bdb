"""Simulates a server: the real engine on a virtual clock, with the step times of a profile."""
