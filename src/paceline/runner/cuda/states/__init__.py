"""Layers on a GPU that keep a state of each sequence."""
