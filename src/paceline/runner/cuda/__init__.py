"""The runner for NVIDIA GPUs: fused kernels, state on the device, steps as CUDA graphs."""
