"""A model divided among ranks, each of which holds a part of every layer."""
