"""A worker of NVIDIA Dynamo."""
