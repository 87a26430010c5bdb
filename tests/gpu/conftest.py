"""Tests of kernels for a GPU, which need Triton: on a platform without it, none is collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
