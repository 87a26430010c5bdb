"""Layers of all architectures."""
