"""The one place that wires everything: from a model's name to the parts of an engine."""
