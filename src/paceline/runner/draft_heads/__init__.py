"""Heads that guess tokens from hidden states of a model."""
