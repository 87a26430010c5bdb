"""Models that are divided among ranks."""
