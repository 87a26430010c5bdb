"""Parts of paceline inside other engines."""
