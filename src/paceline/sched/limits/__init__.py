"""What clips the rows of a step, one limit per file."""
