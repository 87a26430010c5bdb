"""The journal of decisions, and its sentences."""
