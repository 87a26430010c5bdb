"""GPU kernels, in Triton and in CUDA C++."""
