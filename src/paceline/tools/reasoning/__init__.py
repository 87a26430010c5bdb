"""Reasoning as models write it: one file for each format."""
