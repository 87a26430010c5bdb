"""Vision towers: from the pixels of an image to embeddings of the decoder."""
