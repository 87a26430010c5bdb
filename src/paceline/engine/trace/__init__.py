"""A timeline of an engine, in the format of Chrome and Perfetto."""
