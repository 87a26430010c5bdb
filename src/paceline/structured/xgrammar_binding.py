"""The classes of xgrammar's shared library.

`import xgrammar` imports torch and transformers, which takes seconds and is needed for other
functions of that package only. The library itself needs `tvm_ffi`, as does xgrammar's own binding,
which declares the same classes.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm_ffi

LIBRARY = "libxgrammar_bindings.so"


def library() -> Path:
    spec = find_spec("xgrammar")
    if spec is None or spec.origin is None:
        raise ImportError("no module named xgrammar")
    return Path(spec.origin).with_name(LIBRARY)


loaded: Any = tvm_ffi.load_module(str(library()))  # pyright: ignore[reportUnknownMemberType]


def bound(name: str) -> Any:
    declared = type(name, (tvm_ffi.Object,), {})
    return tvm_ffi.register_object(f"xgrammar.tvm_ffi_binding.{name}")(declared)


BatchGrammarMatcher = bound("BatchGrammarMatcher")
CompiledGrammar = bound("CompiledGrammar")
GrammarCompiler = bound("GrammarCompiler")
GrammarMatcher = bound("GrammarMatcher")
TokenizerInfo = bound("TokenizerInfo")


def shared_array(values: Sequence[Any]) -> Any:
    """An array of the library, so that it is not made anew for each call."""
    return tvm_ffi.convert(values)
