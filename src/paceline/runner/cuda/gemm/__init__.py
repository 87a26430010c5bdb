"""GEMMs of linears, one kind in each file."""
