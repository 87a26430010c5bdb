"""One suite for every policy there is."""
