"""What stops an admission, one gate per file."""
