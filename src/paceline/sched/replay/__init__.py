"""Record the calls of a scheduler, and replay them."""
