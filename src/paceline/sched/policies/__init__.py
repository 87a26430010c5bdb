"""One policy per file, found by module name."""
