"""A store of responses has limits: number, bytes and age."""

from paceline.server.responses.store import ResponseStore, StoredResponse


def put(store: ResponseStore, name: str, body: bytes, input: bytes) -> None:
    store.put(name, StoredResponse(body, input))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_responses_go_first() -> None:
    store = ResponseStore(3, 1000, 60.0)
    for name in ("a", "b", "c"):
        put(store, name, b"{}", b"[]")
    put(store, "a", b"{ }", b"[]")  # a new state of it
    put(store, "d", b"{}", b"[]")
    assert [store.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert store.remove("a")
    assert not store.remove("a")
    assert store.get("a") is None


def test_bytes_are_limited() -> None:
    store = ResponseStore(100, 10, 60.0)
    put(store, "a", b"1234", b"12")
    put(store, "b", b"12", b"12")
    assert store.get("a") is not None
    put(store, "c", b"1", b"")
    assert store.get("a") is None
    put(store, "b", b"1234567", b"1234")  # larger than all
    assert store.get("b") is None
    assert store.get("c") is not None


def test_responses_are_forgotten_after_a_time() -> None:
    clock = Clock()
    store = ResponseStore(100, 1000, 60.0, clock)
    put(store, "a", b"{}", b"[]")
    clock.now += 30
    put(store, "b", b"{}", b"[]")
    clock.now += 30
    assert store.get("a") is None
    assert store.get("b") is not None


def test_a_response_reaches_another_process_unchanged() -> None:
    one = StoredResponse(b'{"status": "queued", "output": [{"id": "x"}]}', b'[{"id": "y"}]', True)
    assert StoredResponse.received(one.sent()) == one
    assert (one.status, one.items) == ("queued", [{"id": "y"}, {"id": "x"}])


def test_events_are_a_part_of_their_response() -> None:
    store = ResponseStore(100, 100, 60.0)
    store.open_log("a")  # not kept
    assert store.log("a") is None
    for name in "ab":
        put(store, name, b"1234567890", b"")
    store.open_log("b")
    store.add_events("b", b"0" * 40)
    put(store, "b", b"12345", b"")  # a new state has the same log
    log = store.log("b")
    assert log is not None
    assert log.size == 40
    put(store, "c", b"0" * 46, b"")
    assert store.get("a") is None
    assert store.log("b") is log
    store.add_events("b", b"0" * 60)
    assert store.log("b") is None  # with its events it is larger than all
    assert store.get("b") is not None
    store.add_events("b", b"0")
    put(store, "c", b"0" * 100, b"")
    assert store.get("c") is not None  # nothing of the others is counted
    store.open_log("c")
    store.add_events("c", b"0")
    assert store.log("c") is None
    assert store.get("c") is not None


def test_a_new_state_may_have_no_room_for_its_events() -> None:
    store = ResponseStore(100, 100, 60.0)
    put(store, "a", b"1", b"")
    store.open_log("a")
    store.add_events("a", b"0" * 60)
    put(store, "a", b"0" * 50, b"")
    assert store.log("a") is None
    put(store, "a", b"0" * 100, b"")
    assert store.get("a") is not None
    assert not store.put("a", StoredResponse(b"0" * 101, b""))
