"""Proposers, one per file: they draft tokens."""
