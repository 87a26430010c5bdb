"""Weight formats, one in each file."""
