# Kernels are not Python, though they look like it: whatever comes from here has any type.
from typing import Any

def __getattr__(name: str) -> Any: ...
