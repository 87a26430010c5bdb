"""Descriptions of layers that keep a state of each sequence, one module for each kind."""
