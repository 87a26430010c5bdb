"""The parts that all architectures are made of."""
