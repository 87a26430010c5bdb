"""Paged KV memory as the host sees it: blocks, their content keys, block tables."""
