"""MoE layers on a GPU: the router, and experts in kernels by format and number of rows."""
