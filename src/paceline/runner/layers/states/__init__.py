"""Layers in torch that keep a state of each sequence."""
