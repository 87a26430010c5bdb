"""Eviction orders that learn."""
