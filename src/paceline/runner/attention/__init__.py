"""One file per attention backend, found by its name."""
