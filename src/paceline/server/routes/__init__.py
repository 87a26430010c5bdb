"""HTTP routes, one file per group of endpoints."""
