"""What every connector that keeps KV by content must do; each runs on a real thread and store.

`nixl` keeps nothing by content: see tests/kv/connectors/test_nixl.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import iter_modules
from threading import Event
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.features import ConnectorConfig
from paceline.kv import connector as port
from paceline.kv import connectors
from paceline.kv.connector import Connector, Transfer, TransferEnd
from tests.kv.block_array import REQUEST, BlockArray, keys_of, transfer
from tests.kv.resp_servers import resp_server, socket_folder

PAIRWISE = {"nixl"}  # from one engine to another
NAMES = sorted({one.name for one in iter_modules(connectors.__path__)} - PAIRWISE)
KEYS = keys_of(1, 2, 3, 4)
PATIENCE_S = 30.0


class Engine:
    """A connector with blocks of its own. `extra` are its options."""

    def __init__(self, name: str, extra: dict[str, Any], seed: int = 0, layout: str = "") -> None:
        self.store, self.news, self._requests = BlockArray(seed=seed), Event(), 0
        self.store.layout = layout or self.store.layout
        config = ConnectorConfig(name, kv_connector_extra_config=extra)
        self.connector: Connector = port.load(config)
        self.connector.attach(self.store, self.news.set)

    def wait(self, answer: Callable[[], Any]) -> Any:
        """Ask until there is an answer."""
        while (found := answer()) is None:
            assert self.news.wait(PATIENCE_S), "there is no news"
            self.news.clear()
        return found

    def offered(self, keys: Sequence[bytes], have: int = 0) -> int:
        """What a new request is offered."""
        self._requests += 1
        request = replace(REQUEST, id=f"r{self._requests}")
        return self.wait(lambda: self.connector.offer(request, keys, have))

    def end(self, begin: Callable[[Transfer], None], one: Transfer) -> TransferEnd:
        """Make a transfer, and return its only end."""
        begin(one)
        (end,) = self.wait(lambda: self.connector.poll() or None)
        assert end.ticket == one.ticket
        assert not self.connector.poll()
        return end

    def store_blocks(self, keys: Sequence[bytes], blocks: Sequence[int], ticket: int = 1) -> None:
        """Store blocks and wait until they can be loaded."""
        end = self.end(self.connector.store, transfer(ticket, keys, blocks))
        assert end.bad is None
        self.wait(lambda: self._kept(keys))

    def _kept(self, keys: Sequence[bytes]) -> bool | None:
        assert not self.connector.poll()
        return True if self.connector.keep(keys) == len(keys) else None

    def load(self, keys: Sequence[bytes], blocks: Sequence[int], ticket: int = 9) -> TransferEnd:
        return self.end(self.connector.fetch, transfer(ticket, keys, blocks))


Make = Callable[..., Engine]


@contextmanager
def options_of(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Options with which a connector works in a test."""
    if name == "disk":
        yield {"path": str(folder)}
    elif name == "valkey":
        with socket_folder() as short, resp_server(short) as url:
            yield {"url": url}
    else:
        yield {}


@pytest.fixture(scope="module", params=NAMES)
def named(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Any]]]:
    name = str(request.param)
    with options_of(name, tmp_path_factory.mktemp("kv")) as extra:
        yield name, extra


@pytest.fixture
def make(named: tuple[str, dict[str, Any]], request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes connectors of one name; nothing of one test is there in another."""
    made: list[Engine] = []

    def one(seed: int = 0, layout: str = "", **more: Any) -> Engine:
        name, extra = named
        own = layout or "layout-" + str(abs(hash(request.node.name)))
        made.append(Engine(name, extra | more, seed, own))
        return made[-1]

    yield one
    for engine in made:
        engine.connector.close()


def test_what_is_stored_is_loaded_into_other_blocks(make: Make) -> None:
    engine = make()
    assert engine.offered(KEYS) == 0
    engine.store_blocks(KEYS, (1, 2, 3, 4))
    assert engine.offered(KEYS) == 4
    assert engine.offered(KEYS, have=3) == 1
    assert engine.load(KEYS, (10, 11, 12, 13)).bad is None
    assert np.array_equal(engine.store.content[10:14], engine.store.content[1:5])


def test_a_prefix_is_offered_up_to_the_first_missing_block(make: Make) -> None:
    engine = make()
    engine.store_blocks((KEYS[0], KEYS[1], KEYS[3]), (1, 2, 4))
    assert engine.offered(KEYS) == 2
    assert engine.offered(KEYS, have=2) == 0
    assert engine.connector.keep(KEYS) == 2


def test_a_load_of_what_is_not_there_names_the_first_bad_block(make: Make) -> None:
    engine = make()
    engine.store_blocks(KEYS[:2], (1, 2))
    before = engine.store.content.copy()
    end = engine.load(KEYS, (10, 11, 12, 13))
    assert end.bad == 2
    assert end.reason
    assert np.array_equal(engine.store.content[10:12], before[1:3])
    assert np.array_equal(engine.store.content[14:], before[14:])


def test_stored_twice_is_there_once(make: Make) -> None:
    engine = make()
    engine.store_blocks(KEYS[:1], (1,))
    engine.store_blocks(KEYS[:1], (1,), ticket=2)
    assert engine.load(KEYS[:1], (9,)).bad is None
    assert np.array_equal(engine.store.content[9], engine.store.content[1])


def test_several_transfers_end_once_each(make: Make) -> None:
    engine = make()
    for number in range(8):
        engine.connector.store(transfer(number, keys_of(50 + number), (number,)))
    ended: list[int] = []
    while len(ended) < 8:
        ended += [end.ticket.id for end in engine.wait(lambda: engine.connector.poll() or None)]
    assert sorted(ended) == list(range(8))


def test_forgotten_content_is_not_offered(make: Make) -> None:
    engine = make()
    engine.store_blocks(KEYS, (1, 2, 3, 4))
    engine.connector.forget(KEYS[1:2])
    engine.wait(lambda: engine.offered(KEYS[:1]) or None)
    assert engine.connector.keep(KEYS) == 1


def test_nothing_is_left_after_clear(make: Make) -> None:
    engine = make()
    engine.store_blocks(KEYS, (1, 2, 3, 4))
    engine.connector.clear()
    assert engine.connector.keep(KEYS) == 0
    assert engine.offered(KEYS) == 0
    assert engine.load(KEYS[:1], (9,)).bad == 0
    engine.store_blocks(KEYS, (1, 2, 3, 4), ticket=3)
    assert engine.offered(KEYS) == 4


def test_blocks_of_several_groups_are_found_in_any_order(make: Make) -> None:
    engine = make()
    assert engine.connector.takes_groups
    grouped = [key + bytes((0, 0, 0, group)) for key in KEYS for group in (1, 2)]
    engine.store_blocks((*KEYS, *grouped[2:]), range(10))
    assert engine.offered(KEYS) == 4
    assert engine.offered(grouped) == 0
    assert engine.offered(grouped[::-1]) == 6
    assert engine.load([grouped[7], KEYS[0]], (10, 11)).bad is None
    assert np.array_equal(engine.store.content[[10, 11]], engine.store.content[[9, 0]])


def test_the_first_state_that_is_there_is_found(make: Make) -> None:
    """Of many keys, most of which it does not have, also after one was forgotten."""
    engine = make()
    assert engine.connector.takes_states

    def found(keys: Sequence[bytes], name: str) -> int:
        request = replace(REQUEST, id=name)
        return engine.wait(lambda: engine.connector.find(request, keys))

    places = [bytes((0, 1, number)) for number in range(100)]
    assert found(places, "none yet") == 100
    engine.store_blocks((places[60], places[40]), (1, 2))
    assert found(places, "deepest") == 40
    assert found(places[41:], "next") == 19
    engine.connector.clear()
    assert found(places, "cleared") == 100


def test_what_comes_and_goes_is_reported(make: Make) -> None:
    engine = make()
    if engine.connector.medium is None:
        return
    there: list[bytes] = []

    def changed(keys: Sequence[bytes], is_there: bool) -> None:
        for key in keys:
            there.append(key) if is_there else there.remove(key)

    engine.connector.watch(changed)
    engine.store_blocks(KEYS, (1, 2, 3, 4))
    assert sorted(there) == sorted(KEYS)
    engine.connector.forget(KEYS[1:2])
    assert sorted(there) == [KEYS[0], *KEYS[2:]]
    engine.connector.clear()
    assert not there


def test_an_unknown_option_is_refused(named: tuple[str, dict[str, Any]]) -> None:
    name, extra = named
    with pytest.raises(ConfigError, match="has no option 'colour'"):
        port.load(ConnectorConfig(name, kv_connector_extra_config={**extra, "colour": "red"}))


def test_layouts_share_nothing_and_engines_of_one_layout_share_all(
    named: tuple[str, dict[str, Any]], make: Make
) -> None:
    first = make()
    first.store_blocks(KEYS, (1, 2, 3, 4))
    assert make(seed=2, layout="other").offered(KEYS) == 0
    second = make(seed=1)
    if named[0] == "host":
        assert second.offered(KEYS) == 0  # it is memory of one process
        return
    assert second.offered(KEYS) == 4
    assert second.load(KEYS, (5, 6, 7, 8)).bad is None
    assert np.array_equal(second.store.content[5:9], first.store.content[1:5])
