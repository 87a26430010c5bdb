"""Text in, streams of text out."""
