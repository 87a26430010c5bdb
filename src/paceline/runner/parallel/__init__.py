"""Tensor parallelism: each rank holds a part of every layer."""
