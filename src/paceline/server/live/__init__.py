"""Serves a page that shows what an engine does."""
