"""Where models come from: named models, files, folders and repositories."""
