"""Text encoders: models that compute embeddings and scores and generate nothing."""
