"""The one place that wires everything: from a model name to a running engine."""
