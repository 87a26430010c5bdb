"""The state of a scheduler as bytes: any graph of plain objects, containers and arrays."""
