"""Read a graph of objects from bytes, without running any of their methods."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import count
from json import loads
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from paceline.sched.replay.records import LENGTH
from paceline.sched.replay.state.layout import BUILT_IN, PAGE_BYTES, Tag, is_home

Array = npt.NDArray[Any]
Node = list[Any]
EMPTY: dict[Tag, Callable[[], Any]] = {
    Tag.LIST: list,
    Tag.SET: set,
    Tag.DICT: dict,
    Tag.ORDERED_DICT: OrderedDict,
    Tag.COUNTER: Counter,
    Tag.DEFAULT_DICT: defaultdict,
}
PACKED: dict[Tag, Callable[[list[int]], Any]] = {
    Tag.LIST: list,
    Tag.TUPLE: tuple,
    Tag.SET: set,
    Tag.FROZENSET: frozenset,
}


class Layout(NamedTuple):
    """A class and the attributes of its objects."""

    kind: Any
    names: list[str]


class Decoder:
    """Decodes the graph that an `Encoder` wrote; `root` is its first object.

    Nodes may refer to each other, so each is created empty and filled later. Immutable values, such
    as tuples, are created when first needed. Sets and dictionaries are filled last, when all that
    they hash is complete.
    """

    def __init__(self, content: bytes, plug_ins: frozenset[str]) -> None:
        (length,) = LENGTH.unpack_from(content)
        document: list[Any] = loads(content[LENGTH.size : LENGTH.size + length])
        classes, layouts, nodes, root = document
        self._tail = memoryview(content)[LENGTH.size + length :]
        self._plug_ins = plug_ins
        self._classes: list[Any] = [self._class(*names) for names in classes]
        self._layouts: list[Layout] = [
            Layout(self._classes[number], names) for number, *names in layouts
        ]
        self._nodes: list[Node] = nodes
        self._makers = self._maker_table()
        self._made: dict[int, Any] = {}
        for number, node in enumerate(self._nodes):
            self._make_empty(number, node)
        hashed = [number for number, one in self._made.items() if isinstance(one, set | dict)]
        for number in sorted(set(range(len(self._nodes))) - set(hashed)):
            self._fill(number, self._nodes[number])
        for number in hashed:
            self._fill_hashed(self._made[number], self._nodes[number])
        self.root = self._value(root)

    @property
    def layouts(self) -> list[Layout]:
        """The attributes of objects in the graph, by class."""
        return self._layouts

    def _class(self, module: str, name: str) -> Any:
        if module == "builtins" or (module, name) == ("collections", "deque"):
            return BUILT_IN[name]
        if not is_home(module, self._plug_ins):
            raise ValueError(f"{module}.{name} cannot be part of a state")
        found: Any = import_module(module)
        for part in name.split("."):
            found = vars(found)[part]
            if not isinstance(found, type):
                raise TypeError(f"{module}.{name} is not a class")
        return found

    # -- values -------------------------------------------------------------

    def _value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        first, *rest = cast("Node", value)
        if rest:
            return rest[0].encode("latin-1")
        if first not in self._made:
            tag, *parts = self._nodes[first]
            self._made[first] = self._makers[Tag(tag)](*parts)
        return self._made[first]

    def _values(self, values: Iterable[Any]) -> list[Any]:
        return [self._value(value) for value in values]

    def _maker_table(self) -> dict[Tag, Callable[..., Any]]:
        """Functions that create immutable values, and values without references."""
        return {
            Tag.TUPLE: self._tuple,
            Tag.FROZENSET: self._frozenset,
            Tag.PACKED: self._packed,
            Tag.MAPPING_PROXY: self._mapping_proxy,
            Tag.COUNT: count,
            Tag.TYPE: self._classes.__getitem__,
            Tag.MEMBER: self._member,
            Tag.METHOD: self._method,
            Tag.SCALAR: self._scalar,
            Tag.NAMES: self._names,
            Tag.ARRAY: self._array,
            Tag.VIEW: self._view,
            Tag.OBJECT: self._named_tuple,
        }

    def _tuple(self, *values: Any) -> tuple[Any, ...]:
        return tuple(self._values(values))

    def _frozenset(self, *values: Any) -> frozenset[Any]:
        return frozenset(self._values(values))

    def _mapping_proxy(self, mapping: Any) -> MappingProxyType[Any, Any]:
        return MappingProxyType(self._value(mapping))

    def _named_tuple(self, layout: int, *values: Any) -> Any:
        return self._layouts[layout].kind._make(self._values(values))

    def _member(self, kind: int, name: str) -> Any:
        return self._classes[kind][name]

    def _scalar(self, dtype: str, value: Any) -> Any:
        return np.dtype(dtype).type(value)

    def _method(self, owner: Any, name: str) -> Any:
        found: Any = self._value(owner)
        function = getattr(cast("type[Any]", type(found)), name)
        if not isinstance(function, FunctionType):
            raise TypeError(f"{name} is not a method")
        return MethodType(function, found)

    def _packed(self, tag: str, most: int | None, offset: int, length: int) -> Any:
        values = np.frombuffer(self._tail, np.int64, length, offset).tolist()
        return deque(values, most) if tag == Tag.DEQUE else PACKED[Tag(tag)](values)

    # -- containers and objects ---------------------------------------------

    def _layout(self, node: Node) -> Layout:
        number: int = node[1]
        return self._layouts[number]

    def _make_empty(self, number: int, node: Node) -> None:
        """Create the nodes that can be filled later."""
        tag = Tag(node[0])
        if tag in EMPTY:
            self._made[number] = EMPTY[tag]()
        elif tag is Tag.DEQUE:
            self._made[number] = deque[Any](maxlen=node[1])
        elif tag is Tag.OBJECT:
            kind = self._layout(node).kind
            if not issubclass(kind, tuple):
                self._made[number] = kind.__new__(kind)

    def _fill(self, number: int, node: Node) -> None:
        made = self._value([number])
        match Tag(node[0]):
            case Tag.LIST:
                made.extend(self._values(node[1:]))
            case Tag.DEQUE:
                made.extend(self._values(node[2:]))
            case Tag.OBJECT if not isinstance(made, tuple):
                self._fill_attributes(made, node)
            case _:  # it was created complete
                pass

    def _fill_attributes(self, made: Any, node: Node) -> list[Any]:
        """Fill the attributes of an object; returns the values after them."""
        names = self._layout(node).names
        for name, value in zip(names, node[2:], strict=False):
            object.__setattr__(made, name, self._value(value))
        return node[2 + len(names) :]

    def _fill_hashed(self, made: Any, node: Node) -> None:
        """Fill a set or a dictionary."""
        match Tag(node[0]):
            case Tag.SET:
                made.update(self._values(node[1:]))
                return
            case Tag.DEFAULT_DICT:
                made.default_factory, rest = self._value(node[1]), node[2:]
            case Tag.OBJECT:
                rest = self._fill_attributes(made, node)
            case _:
                rest = node[1:]
        values = self._values(rest)
        for key, value in zip(values[::2], values[1::2], strict=True):
            made[key] = value

    # -- arrays -------------------------------------------------------------

    def _names(self, shape: Sequence[int], *values: Any) -> Array:
        found = np.empty(len(values), object)
        found[:] = self._values(values)
        return found.reshape(shape)

    def _array(
        self, dtype: str, shape: Sequence[int], is_writable: bool, offset: int, ranges: list[int]
    ) -> Array:
        found = np.zeros(shape, dtype)
        content = found.reshape(-1).view(np.uint8)
        for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
            target = content[begin * PAGE_BYTES : end * PAGE_BYTES]
            target[:] = np.frombuffer(self._tail, np.uint8, len(target), offset)
            offset += len(target)
        found.setflags(write=is_writable)
        return found

    def _view(
        self, root: Node, dtype: str, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Array:
        return np.ndarray(shape, dtype, self._value(root), offset, strides)
