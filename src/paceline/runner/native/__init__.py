"""Kernels in C, for machines that have a compiler."""
