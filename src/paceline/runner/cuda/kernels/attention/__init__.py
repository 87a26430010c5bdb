"""Triton and CUDA kernels of attention over paged memory."""
