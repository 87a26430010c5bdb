"""Tells routers which blocks are cached."""
