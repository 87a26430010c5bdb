"""The runner: computes plans with torch and returns sampled tokens."""
