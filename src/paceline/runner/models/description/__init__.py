"""Parts of the description of a model, for `describe`."""
