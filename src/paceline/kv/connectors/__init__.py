"""Where KV goes beyond the device, one connector per file."""
