"""Requests with several sequences: parallel samples and beams."""
