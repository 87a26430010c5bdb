"""Everything that touches torch: turns a plan into sampled tokens."""
