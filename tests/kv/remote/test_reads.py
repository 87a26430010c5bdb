"""Reads from an engine in another process, which may die at any time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from paceline.kv.connector import TransferEnd
from paceline.kv.fence import TransferTicket
from tests.kv.block_array import BlockArray
from tests.kv.nixl_engine import KEYS, NixlEngine

pytest.importorskip("nixl_cu12")

BLOCK_BYTES = 1 << 20  # long enough to be killed meanwhile


class OtherEngine:
    """An engine in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def prefilled(self, ticket: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(ticket, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def other_engine() -> Iterator[OtherEngine]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kv.nixl_engine", json.dumps({"block_bytes": BLOCK_BYTES})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield OtherEngine(process)
    finally:
        process.kill()
        process.communicate()


def test_an_engine_may_die_during_and_before_a_read() -> None:
    decode = NixlEngine(1, block_bytes=BLOCK_BYTES)
    with other_engine() as prefill:
        one, other = prefill.prefilled(1), prefill.prefilled(2)
        decode.fetch(1, one, KEYS)
        assert decode.ended() == TransferEnd(TransferTicket(1))
        theirs = BlockArray(16, BLOCK_BYTES).content
        assert np.array_equal(decode.store.content[[1, 2, 3]], theirs[[4, 0, 7]])
        decode.fetch(2, other, KEYS)
        prefill.kill()  # the read may be over
        assert decode.ended().bad in (None, 0)
        decode.fetch(3, other, KEYS)
        assert decode.ended().bad == 0
    decode.connector.close()
