"""Record the calls of a scheduler, and make them again."""
