"""Imports Ray Serve once, with the warnings of its own code, which are errors in tests."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve  # noqa: F401
