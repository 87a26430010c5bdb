"""The vocabulary every layer shares: requests, plans, settings, errors and events."""
