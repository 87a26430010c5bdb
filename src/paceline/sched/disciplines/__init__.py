"""Disciplines of building a step, one file each."""
