"""Models that read a text as a whole and generate nothing: embeddings and scores."""
