"""Several engines: which one gets a request, and the fleets that engines join."""
