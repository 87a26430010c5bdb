"""Write a graph of objects as bytes."""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from itertools import count
from types import MethodType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from paceline.core.multimodal import ImageContent
from paceline.kv.connector import Connector, TransferObserver
from paceline.sched.replay.records import LENGTH, to_json
from paceline.sched.replay.state.layout import (
    BUILT_IN,
    BYTES,
    MAPPINGS,
    OTHERS,
    PACKED_LENGTH,
    PAGE_BYTES,
    SCALARS,
    SEQUENCES,
    Tag,
    attribute_names,
    is_home,
    unsupported,
)

Array = npt.NDArray[Any]
U8 = npt.NDArray[np.uint8]
INTEGERS = {int}
SMALLEST, LARGEST = -(2**63), 2**63 - 1


class Encoder:
    """Numbers every object, so that shared objects stay shared.

    It works through a list of objects without recursion, so chains of objects may be long.
    """

    def __init__(self, plug_ins: frozenset[str]) -> None:
        self._plug_ins = plug_ins
        self._numbers: dict[int, int] = {}  # of nodes, by the identity of the object
        self._objects: list[Any] = []  # by number, kept alive so that identities stay unique
        self._nodes: list[Any] = []
        self._classes: dict[type, int] = {}
        self._slots: dict[type, list[str]] = {}
        self._layouts: dict[tuple[type, tuple[str, ...]], int] = {}
        self._arrays: list[int] = []  # numbers of arrays, which are written last
        self._tail: list[bytes] = []
        self._tail_bytes = 0

    def encoded(self, root: object) -> bytes:
        value = self._value(root)
        self._work()
        self._write_arrays()
        head = to_json([self._class_names(), self._layout_names(), self._nodes, value]).encode()
        return b"".join((LENGTH.pack(len(head)), head, *self._tail))

    # -- values and nodes ---------------------------------------------------

    def _value(self, value: Any) -> Any:
        if type(value) in SCALARS:
            return value
        if isinstance(value, ImageContent | Connector | TransferObserver):
            return None  # not part of the state
        number = self._numbers.get(id(value))
        if number is None:
            if isinstance(value, bytes):
                return [BYTES, value.decode("latin-1")]
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return [number]

    def _work(self) -> None:
        """Write pending nodes; each may add others."""
        while len(self._nodes) < len(self._objects):
            self._nodes.append(self._node(self._objects[len(self._nodes)]))

    def _values(self, values: Iterable[Any]) -> list[Any]:
        return [self._value(value) for value in values]

    def _node(self, value: Any) -> list[Any]:
        kind = cast("type[Any]", type(value))
        if kind in SEQUENCES:
            return self._sequence(SEQUENCES[kind], value)
        if kind in MAPPINGS:
            return self._mapping(MAPPINGS[kind], value)
        if kind in OTHERS:
            return self._other(value)
        if isinstance(value, np.ndarray):
            return self._array(cast("Array", value))
        if isinstance(value, np.generic):
            return [Tag.SCALAR, np.dtype(kind).str, cast("Any", value).item()]
        if isinstance(value, type):
            return [Tag.TYPE, self._class(cast("type[Any]", value))]
        if isinstance(value, MethodType):
            return [Tag.METHOD, self._value(value.__self__), value.__func__.__name__]
        if isinstance(value, Enum):
            return [Tag.MEMBER, self._class(kind), value.name]
        return self._object(value, kind)

    def _sequence(self, tag: Tag, values: Any) -> list[Any]:
        most = cast("deque[Any]", values).maxlen if tag is Tag.DEQUE else None
        if len(values) >= PACKED_LENGTH and fits_int64(values):
            packed = np.fromiter(values, np.int64, len(values))
            return [Tag.PACKED, tag, most, self._append(packed.tobytes()), len(values)]
        first = [most] if tag is Tag.DEQUE else []
        return [tag, *first, *self._values(values)]

    def _mapping(self, tag: Tag, values: Any) -> list[Any]:
        first = [self._value(values.default_factory)] if tag is Tag.DEFAULT_DICT else []
        return [tag, *first, *self._pairs(values)]

    def _pairs(self, values: dict[Any, Any]) -> list[Any]:
        return [self._value(one) for pair in values.items() for one in pair]

    def _other(self, value: Any) -> list[Any]:
        if isinstance(value, count):  # only its text has the next number
            text = repr(cast("Any", value))
            return [Tag.COUNT, int(text.removeprefix("count(").removesuffix(")"))]
        return [Tag.MAPPING_PROXY, self._value(dict(value))]

    # -- objects ------------------------------------------------------------

    def _object(self, value: Any, kind: type[Any]) -> list[Any]:
        slots = self._slots.get(kind)
        if slots is None:
            if not is_home(kind.__module__, self._plug_ins):
                raise unsupported(value)
            slots = self._slots[kind] = attribute_names(kind)
        pairs = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
        found = dict(pairs) | getattr(value, "__dict__", {})
        layout = self._layouts.setdefault((kind, tuple(found)), len(self._layouts))
        node = [Tag.OBJECT, layout, *self._values(found.values())]
        if isinstance(value, dict):
            node += self._pairs(cast("Any", value))
        elif isinstance(value, tuple):
            node += self._values(cast("Any", value))
        elif isinstance(value, list | set | frozenset | deque | str | int | float | bytes):
            raise unsupported(cast("Any", value))
        return node

    def _class(self, kind: type[Any]) -> int:
        if BUILT_IN.get(kind.__name__) is not kind and not is_home(kind.__module__, self._plug_ins):
            raise unsupported(kind)
        return self._classes.setdefault(kind, len(self._classes))

    def _layout_names(self) -> list[Any]:
        return [[self._class(kind), *names] for kind, names in self._layouts]

    def _class_names(self) -> list[Any]:
        self._layout_names()  # numbers the classes of layouts
        return [[kind.__module__, kind.__qualname__] for kind in self._classes]

    # -- arrays -------------------------------------------------------------

    def _array(self, array: Array) -> list[Any]:
        if array.dtype == object:
            return [Tag.NAMES, array.shape, *self._values(array.ravel().tolist())]
        self._arrays.append(len(self._nodes))
        return [Tag.ARRAY]

    def _write_arrays(self) -> None:
        """Write the arrays. Writable arrays that share memory stay views of one array."""
        sharing: dict[int, list[int]] = {}
        for number in self._arrays:
            array = self._objects[number]
            sharing.setdefault(id(owner(array)), []).append(number)
        for numbers in sharing.values():
            array: Array = self._objects[numbers[0]]
            is_shared = len(numbers) > 1
            if not is_shared or not any(self._objects[one].flags.writeable for one in numbers):
                for number in numbers:
                    self._nodes[number] = self._owned(self._objects[number])
                continue
            memory = owner(array)
            root = self._value(memory)
            self._work()
            self._nodes[root[0]] = self._owned(memory)
            for number in numbers:
                if number != root[0]:
                    self._nodes[number] = self._view(self._objects[number], memory, root)

    def _owned(self, array: Array) -> list[Any]:
        # A table of tokens may be gigabytes of zeros without physical memory: do not copy it.
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        ranges = page_ranges(content)
        parts = zip(ranges[::2], ranges[1::2], strict=True)
        kept = [content[begin * PAGE_BYTES : end * PAGE_BYTES].tobytes() for begin, end in parts]
        offset = self._append(b"".join(kept))
        return [Tag.ARRAY, array.dtype.str, array.shape, array.flags.writeable, offset, ranges]

    def _view(self, array: Array, memory: Array, root: list[int]) -> list[Any]:
        offset = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        return [Tag.VIEW, root, array.dtype.str, offset, array.shape, array.strides]

    def _append(self, content: bytes) -> int:
        """Append bytes to the tail; returns their offset."""
        offset = self._tail_bytes
        self._tail.append(content)
        self._tail_bytes += len(content)
        return offset


def fits_int64(values: Any) -> bool:
    """Are all values integers that fit int64?"""
    if set(map(type, values)) != INTEGERS:
        return False
    return min(values) >= SMALLEST and max(values) <= LARGEST


def owner(array: Array) -> Array:
    """The array that owns the memory of this one, perhaps itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def page_ranges(content: U8) -> list[int]:
    """Ranges of pages that are not all zero, as begin and end."""
    if len(content) <= PAGE_BYTES:
        return [0, 1]
    whole = len(content) // PAGE_BYTES * PAGE_BYTES
    words = content[:whole].view(np.uint64).reshape(whole // PAGE_BYTES, -1)  # [pages, words]
    used = np.bitwise_or.reduce(words, axis=1) != 0
    used = np.concatenate(([False], used, [content[whole:].any()], [False]))
    return np.flatnonzero(used[1:] != used[:-1]).tolist()
