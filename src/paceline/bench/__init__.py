"""Puts a load on an engine or on a server, and reports how it fared."""
