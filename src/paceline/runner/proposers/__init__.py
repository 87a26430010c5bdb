"""Proposers of draft tokens, one file each."""
