"""Measures the steps of a runner, and fits a profile to them."""
