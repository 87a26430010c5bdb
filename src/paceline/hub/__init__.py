"""Where models come from: names, wheels, folders and repositories, and the cache on disk."""
