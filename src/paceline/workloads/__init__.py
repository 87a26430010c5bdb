"""Loads to put on an engine: traces, arrivals, prompts."""
