"""The raw client on a server that says what the test says."""

import socket
from math import inf
from threading import Thread
from time import monotonic

import pytest

from benchmarks.raw_client import Load, RawRequest, RawStream, load, run

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
LAST = b'data: {"finish_reason":"length"}\n\ndata: [DONE]\n\n'
ASKED = RawRequest.completion([1, 2], 3)


def served(
    answers: list[list[bytes]], scripts: list[list[RawRequest]], until_s: float = inf
) -> list[RawStream]:
    """Answer one connection after another, each with parts that arrive by themselves."""

    def serve() -> None:
        for parts in answers:
            connection, _ = listener.accept()
            with connection:
                got = b""
                while not got.endswith(b"}"):
                    got += connection.recv(4096)
                for part in parts:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connection.sendall(part)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = Thread(target=serve)
        thread.start()
        try:
            return run(listener.getsockname(), scripts, monotonic(), until_s)
        finally:
            thread.join()


def test_events_are_counted_however_they_are_divided() -> None:
    body = HEAD + b'data: {"text":"a\\n\\nb"}\n\n' + LAST
    parts = [[body], [body[at : at + 1] for at in range(len(body))]]
    streams = served(parts, [[ASKED, ASKED]])
    assert [(one.events, one.error) for one in streams] == [(2, ""), (2, "")]
    assert all(one.sent < one.reads[0] <= one.reads[-1] for one in streams)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Too Many Requests\r\n\r\n" + LAST,
        HEAD + b'data: {"text":"a"}\n\n',
        HEAD + b'data: {"error":"lost"}\n\ndata: [DONE]\n\n',
        b"",
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(answer: bytes) -> None:
    (stream,) = served([[answer]], [[ASKED]])
    assert stream.error
    with pytest.raises(SystemExit, match="no request succeeded"):
        Load([stream], 0.0).figures()


def test_several_processes_are_merged() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        found = load(nobody.getsockname()[1], [[ASKED]] * 3, processes=2)
    assert len(found.streams) == 3
    assert all("refused" in one.error for one in found.streams)
    assert found.cpu_s > 0


def test_figures_of_two_streams() -> None:
    first, second = RawStream(3, sent=1.0, events=3), RawStream(2, sent=1.0, events=1)
    first.reads.extend([1.5, 2.0, 3.0])
    second.reads.extend([2.5])
    figures = Load([first, second], 10e-6).figures()
    assert figures["tokens_per_s"] == 2  # 5 in 2 s, rounded to even
    assert figures["chunks_per_token"] == 0.8
    assert (figures["ttft_p50_ms"], figures["itl_p99_ms"]) == (1500.0, 1000.0)
    assert figures["client_us"] == 2.0


def test_requests_are_sent_at_their_times_and_none_after_the_end() -> None:
    """The last one comes after the time."""
    later = RawRequest.completion([1], 3, at_s=0.1, name="later")
    never = RawRequest.completion([1], 3, at_s=9.0, name="never")
    begun = monotonic()
    streams = served([[HEAD + b"data: {}\n\n"], [HEAD + LAST]], [[never], [ASKED], [later]], 0.4)
    assert [one.name for one in streams] == ["", "later"]
    assert streams[1].sent == pytest.approx(begun + 0.1, abs=0.05)
    assert streams[1].reads[0] >= streams[1].sent
    assert not streams[1].error
