"""Tokenizers, chat templates, and streams of text with stop strings."""
