"""Graphs of objects survive as bytes: values, types, sharing and memory."""

import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum
from itertools import count
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from paceline.core.request import Finish
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.state.decoder import Decoder
from paceline.sched.replay.state.encoder import Encoder

HERE = frozenset(["tests"])


def again(value: Any) -> Any:
    return Decoder(Encoder(HERE).encoded(value), HERE).root


class Point(NamedTuple):
    x: int
    name: str


class Slotted:
    __slots__ = ("__hidden", "unset", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.__hidden = value, 7

    @property
    def hidden(self) -> int:
        return self.__hidden


class Named(dict[str, int]):
    """A dictionary with an attribute."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def total(self) -> int:
        return sum(self.values())


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**80),
        0.1 + 0.2,
        float("inf"),
        "\ud800 ü\0",
        b"\x00\xff",
        [],
        [1, [2, None], "x"],
        list(range(1000)),
        tuple(range(-500, 500)),
        [2**70, *range(100)],
        [True] * 100,
        (1, (2, b"k"), ()),
        {1, 2},
        frozenset({"a"}),
        set(range(300)),
        {"a": 1, 2: [3], (4, "b"): None},
        OrderedDict([("b", 1), ("a", 2)]),
        Counter("hello"),
        defaultdict(list, {"a": [1]}),
        deque([1, 2], maxlen=5),
        deque(range(100), maxlen=100),
        Point(3, "p"),
        Colour.RED,
        Finish.STOP,
        np.int32(7),
        np.float64(0.3),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.20}",
)
def test_values_survive_with_their_types(value: Any) -> None:
    found = again(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, dict):
        assert list(found) == list(value)
    if isinstance(value, deque):
        assert found.maxlen == value.maxlen
    if isinstance(value, defaultdict):
        assert found["new"] == []


def test_objects_survive_with_private_and_without_unset_attributes() -> None:
    found = again(Slotted([1]))
    assert (found.value, found.hidden) == ([1], 7)
    assert not hasattr(found, "unset")


def test_a_dictionary_of_its_own_class_survives() -> None:
    made = Named("n")
    made |= {"b": 1, "a": 2}
    found = again([made, made.total])
    assert isinstance(found[0], Named)
    assert (found[0].label, list(found[0].items())) == ("n", [("b", 1), ("a", 2)])
    assert found[1]() == 3
    assert found[1].__self__ is found[0]


def test_a_mapping_proxy_and_a_counter_go_on() -> None:
    numbers = count(5)
    next(numbers)
    proxy, found = again([MappingProxyType({"a": 1}), numbers])
    assert isinstance(proxy, MappingProxyType)
    assert dict(proxy) == {"a": 1}
    assert next(found) == 6


def test_shared_objects_stay_shared_and_cycles_stay_cycles() -> None:
    shared, ring = [1], Slotted(None)
    ring.value = (ring, shared)
    found = again({"a": shared, "b": [shared], "ring": ring})
    assert found["a"] is found["b"][0]
    assert found["ring"].value[0] is found["ring"]
    assert found["ring"].value[1] is found["a"]


def test_a_long_chain_is_no_deep_recursion() -> None:
    chain = Slotted(None)
    for _ in range(20_000):
        chain = Slotted(chain)
    found, length = again(chain), 0
    while found is not None:
        found, length = found.value, length + 1
    assert length == 20_001


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5, dtype=np.int32),
        np.zeros((0, 3), np.int64),
        np.array(4.5),
        np.zeros((64, 4096), np.int32),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(20)[::3],
        np.array([True, False] * 5000),
        np.array(["a", None, "b"], object).reshape(3, 1),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_survive(array: Any) -> None:
    found = again(array)
    assert np.array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_pages_of_zeros_take_no_room() -> None:
    array = np.zeros((256, 8192), np.int32)
    array[7, 100] = array[255, 8191] = 3
    content = Encoder(HERE).encoded(array)
    assert len(content) < 3 * 4096
    assert np.array_equal(again(array), array)


def test_an_array_that_may_not_be_written_still_may_not() -> None:
    array = np.arange(5)
    array.setflags(write=False)
    found = again(array)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


@pytest.mark.parametrize("with_owner", [False, True])
def test_arrays_that_share_memory_still_do(with_owner: bool) -> None:
    table = np.zeros((4, 6), np.int32)
    flat, row = table.reshape(-1), table[2, 1:5]
    value = [flat, row, table] if with_owner else [flat, row]
    found = again(value)
    found[0][13] = 9
    assert found[1].tolist() == [9, 0, 0, 0]
    if with_owner:
        assert found[2][2, 1] == 9


@pytest.mark.parametrize("value", [Lock(), lambda: 1, [object()], print])
def test_what_cannot_be_written_is_named(value: Any) -> None:
    with pytest.raises(RecordingError, match=r"the state of a scheduler with a \w+\.\w+ cannot"):
        Encoder(HERE).encoded(value)


def test_classes_from_elsewhere_are_not_written() -> None:
    with pytest.raises(RecordingError, match="Slotted cannot be recorded"):
        Encoder(frozenset()).encoded(Slotted(1))


def test_an_array_of_zeros_takes_no_memory_while_it_is_written() -> None:
    """The table of tokens of a large engine has gigabytes, of which few are used."""
    table = np.zeros((64, 1 << 18), np.int32)
    table[3, :5] = 7
    tracemalloc.start()
    content = Encoder(HERE).encoded(table)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < table.nbytes // 10
    assert len(content) < 10_000
    assert (Decoder(content, HERE).root == table).all()
