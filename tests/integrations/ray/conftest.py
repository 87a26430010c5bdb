"""Imports Ray Serve once, with the warnings of its own code, which are errors in tests."""

import warnings
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]

if find_spec("ray"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.serve  # noqa: F401
