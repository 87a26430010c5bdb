"""The byte layout of a graph of objects, and the types that it may contain.

A JSON document lists the nodes of the graph; array contents follow it as bytes. In the document,
None, bool, int, float and str stand for themselves. Every other value is a list: [number] refers to
a node, and ["bytes", text] are bytes as Latin-1 text. A node is a list that begins with its tag;
see `Tag`.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from enum import StrEnum
from itertools import count
from types import MappingProxyType
from typing import Any

from paceline.sched.replay.records import RecordingError

PAGE_BYTES = 4096  # all-zero pages of arrays are left out
PACKED_LENGTH = 64  # containers of at least this many integers are stored as arrays
BYTES = "bytes"
SCALARS = frozenset((type(None), bool, int, float, str))
HOME = ("paceline.core.", "paceline.kv.", "paceline.sched.")  # modules whose classes may occur


class Tag(StrEnum):
    """Kinds of nodes. A comment lists the rest of the node."""

    LIST = "list"  # values
    TUPLE = "tuple"  # values
    SET = "set"  # values
    FROZENSET = "frozenset"  # values
    DEQUE = "deque"  # its maxlen, values
    DICT = "dict"  # keys and values in turn
    ORDERED_DICT = "OrderedDict"  # the same
    COUNTER = "Counter"  # the same
    DEFAULT_DICT = "defaultdict"  # its factory, then the same
    MAPPING_PROXY = "mappingproxy"  # the mapping
    PACKED = "packed"  # the tag of a list, tuple, set or deque, its maxlen, offset, length
    COUNT = "count"  # the next number
    TYPE = "type"  # a class
    METHOD = "method"  # its object, its name
    MEMBER = "member"  # a class of enumerated values, the name of one
    OBJECT = "object"  # a layout, the attributes, then the values if it is a container itself
    SCALAR = "scalar"  # of numpy: dtype, value
    ARRAY = "array"  # dtype, shape, is it writable?, offset, ranges of pages that are not zero
    NAMES = "names"  # array of Python objects: shape, values
    VIEW = "view"  # the array that owns the memory, dtype, offset, shape, strides


SEQUENCES: dict[type, Tag] = {
    list: Tag.LIST,
    tuple: Tag.TUPLE,
    set: Tag.SET,
    frozenset: Tag.FROZENSET,
    deque: Tag.DEQUE,
}
MAPPINGS: dict[type, Tag] = {
    dict: Tag.DICT,
    OrderedDict: Tag.ORDERED_DICT,
    Counter: Tag.COUNTER,
    defaultdict: Tag.DEFAULT_DICT,
}
OTHERS: dict[type, Tag] = {MappingProxyType: Tag.MAPPING_PROXY, count: Tag.COUNT}
BUILT_IN = {kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict, set, deque)}


def is_home(module: str, plug_ins: frozenset[str]) -> bool:
    """May classes of this module occur? Plug-ins are allowed by top-level package."""
    return module.startswith(HOME) or module.partition(".")[0] in plug_ins


def attribute_names(kind: type) -> list[str]:
    """The slots of a class and of its bases, by their real names."""
    names: list[str] = []
    for base in kind.__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def unsupported(value: object) -> RecordingError:
    kind = type(value)
    return RecordingError(
        f"the state of a scheduler with a {kind.__module__}.{kind.__qualname__} cannot be recorded"
    )
