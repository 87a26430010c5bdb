"""Explanations: a journal of decisions, and sentences about it."""
