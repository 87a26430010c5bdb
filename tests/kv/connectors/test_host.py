"""Host memory is bounded: the content used least recently makes room."""

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connectors.host import Host
from tests.conformance.test_connectors import Engine
from tests.kv.block_array import REQUEST, BlockArray, keys_of, transfer

A, B, C, D = (keys_of(number) for number in range(4))


def small(rows: int) -> Engine:
    return Engine("host", {"cpu_bytes_to_use": rows * 64})


def test_what_was_used_least_recently_makes_room() -> None:
    engine = small(3)
    for number, keys in enumerate((A, B, C)):
        engine.store_blocks(keys, (number,), ticket=number)
    assert engine.offered(A) == 1  # it is used now
    engine.store_blocks(D, (3,), ticket=4)
    assert [engine.offered(keys) for keys in (A, B, C, D)] == [1, 0, 1, 1]
    engine.connector.close()


def test_the_end_of_a_prefix_makes_room_before_its_beginning() -> None:
    engine = small(3)
    engine.store_blocks((*A, *B, *C), (0, 1, 2))
    engine.store_blocks(D, (3,), ticket=4)
    assert engine.offered((*A, *B, *C)) == 2
    engine.connector.close()


def test_more_than_there_is_room_for_is_stored_in_part() -> None:
    engine = small(2)
    engine.connector.store(transfer(1, (*A, *B, *C), (0, 1, 2)))
    engine.wait(lambda: engine.connector.poll() or None)
    assert engine.offered((*A, *B, *C)) == 2
    engine.connector.close()


def test_content_forgotten_while_it_is_copied_is_gone_and_its_memory_is_used_again() -> None:
    engine = small(1)
    engine.connector.store(transfer(1, A, (0,)))
    engine.connector.forget(A)
    engine.wait(lambda: engine.connector.poll() or None)
    assert engine.offered(A) == 0
    engine.store_blocks(B, (1,), ticket=2)
    assert engine.offered(B) == 1
    engine.connector.close()


def test_there_is_room_for_a_block() -> None:
    with pytest.raises(ConfigError, match="a block has 64 bytes"):
        Host(ConnectorConfig("host", kv_connector_extra_config={"cpu_bytes_to_use": 63})).attach(
            BlockArray(), lambda: None
        )


def test_what_is_not_there_is_forgotten_too() -> None:
    engine = small(2)
    engine.store_blocks(A, (0,))
    engine.connector.forget((*B, *A))
    assert engine.offered(A) == 0
    engine.connector.check(REQUEST)  # it has no use for parameters, and there are none
    engine.connector.close()


def test_copies_that_fail_end_and_leave_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such block")

    engine = small(2)
    engine.store_blocks(A, (0,))
    with monkeypatch.context() as patched:
        patched.setattr(BlockArray, "write", fails)
        patched.setattr(BlockArray, "read_into", fails)
        assert engine.load(A, (5,)).bad == 0
        assert engine.end(engine.connector.store, transfer(2, B, (1,))).bad is None
    assert (engine.offered(A), engine.offered(B)) == (1, 0)
    engine.store_blocks(B, (1,), ticket=3)  # in the row that came free
    assert (engine.offered(A), engine.offered(B)) == (1, 1)
    engine.connector.close()
