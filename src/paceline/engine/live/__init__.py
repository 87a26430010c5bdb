"""What an engine does right now, in frames that a page can draw."""
