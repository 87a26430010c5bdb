"""Between text and token ids: tokenizers, chat templates, streams of text with stop strings."""
