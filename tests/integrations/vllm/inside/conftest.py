"""These tests run in an environment that has vLLM 0.13.0; see `test_inside_vllm.py`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
