"""A store of responses has limits: number, bytes and age."""

from paceline.server.response_store import ResponseStore, StoredResponse


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_responses_go_first() -> None:
    store = ResponseStore(3, 1000, 60.0)
    for name in ("a", "b", "c"):
        store.put(name, b"{}", b"[]")
    store.put("a", b"{ }", b"[]")  # a new state of it
    store.put("d", b"{}", b"[]")
    assert [store.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert store.remove("a")
    assert not store.remove("a")
    assert store.get("a") is None


def test_bytes_are_limited() -> None:
    store = ResponseStore(100, 10, 60.0)
    store.put("a", b"1234", b"12")
    store.put("b", b"12", b"12")
    assert store.get("a") is not None
    store.put("c", b"1", b"")
    assert store.get("a") is None
    store.put("b", b"1234567", b"1234")  # larger than all
    assert store.get("b") is None
    assert store.get("c") is not None


def test_responses_are_forgotten_after_a_time() -> None:
    clock = Clock()
    store = ResponseStore(100, 1000, 60.0, clock)
    store.put("a", b"{}", b"[]")
    clock.now += 30
    store.put("b", b"{}", b"[]")
    clock.now += 30
    assert store.get("a") is None
    assert store.get("b") is not None


def test_a_response_reaches_another_process_unchanged() -> None:
    one = StoredResponse(b'{"status": "queued", "output": [{"id": "x"}]}', b'[{"id": "y"}]', True)
    assert StoredResponse.received(one.sent()) == one
    assert (one.status, one.items) == ("queued", [{"id": "y"}, {"id": "x"}])
