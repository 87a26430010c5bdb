"""Disciplines, one per file: they build the rows of a step."""
