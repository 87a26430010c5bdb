"""The real scheduler on a virtual clock, with runners that need no model."""
