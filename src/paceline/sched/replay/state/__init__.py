"""Serialise graphs of plain objects, containers and arrays."""
