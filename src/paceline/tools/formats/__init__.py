"""Tool calls as models write them: one file for each format."""
