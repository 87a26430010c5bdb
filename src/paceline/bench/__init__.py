"""Benchmarks of an engine or a server."""
