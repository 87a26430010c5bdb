"""Mixers in torch: attention, and layers that keep a state of each sequence."""
