"""`kv_transfer_params`: what routers send and what is returned."""

from dataclasses import fields
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.core.kv_transfer import KVTransfer
from paceline.core.request import Request

KEPT: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "p",
    "remote_request_id": "cmpl-1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [4, 0, 7],
    "remote_num_tokens": 48,
    "remote_blocks_expiry_time": 1.5,
    "tp_size": 1,
    "transfer_mode": "pull",
}


def test_what_a_prefill_engine_returned_is_read_back() -> None:
    found = KVTransfer.of(KEPT)
    assert found is not None
    assert found.remote_block_ids == (4, 0, 7)
    assert found.to_params() == KEPT
    assert set(KEPT) == {one.name for one in fields(KVTransfer)}


def test_null_is_the_default_and_unknown_fields_are_ignored() -> None:
    given = {"do_remote_decode": True, "do_remote_prefill": False, "colour": "red"}
    absent = dict.fromkeys(["remote_block_ids", "remote_host", "remote_port"])
    assert KVTransfer.of(given | absent) == KVTransfer(do_remote_decode=True)


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False, "remote_port": None}])
def test_nothing_is_transferred(params: Any) -> None:
    assert KVTransfer.of(params) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"do_remote_decode": True}, "both true"),
        ({"do_remote_prefill": 1}, "do_remote_prefill is 1; it must be bool"),
        ({"remote_host": None}, "needs remote_engine_id, .* that the prefill engine returned"),
        ({"remote_port": 0}, "needs remote_engine_id"),
        ({"remote_port": 70_000}, "remote_port is 70000; it must lie in 0..65535"),
        ({"remote_block_ids": [1, -1]}, "must be a list of at most 65536 block numbers"),
        ({"remote_block_ids": [[1]]}, "must be a list of at most 65536 block numbers"),
        ({"remote_block_ids": [1] * 65537}, "must be a list of at most 65536 block numbers"),
        ({"tp_size": 2}, "tp_size is 2"),
        ({"transfer_mode": "push"}, "transfer_mode is 'push'; it must be 'pull'"),
    ],
)
def test_wrong_fields_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"kv_transfer_params: .*{message}"):
        KVTransfer.of(KEPT | changed)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (2**64, "an integer does not fit into 64 bits"),
        ([{"a": -(2**63) - 1}], "an integer does not fit into 64 bits"),
        ({"a": ["\ud800"]}, "unpaired surrogate"),
        ({"\ud800": 1}, "unpaired surrogate"),
        (nested(32), "nested more than 32 deep"),
    ],
)
def test_what_another_process_could_not_read_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=f"kv_transfer_params: .*{problem}"):
        Request("a", [1], kv_transfer_params={"colour": value})


def test_any_other_value_is_sent_on() -> None:
    values = [2**64 - 1, -(2**63), 1.5, None, True, "é", nested(30), {}]
    assert Request("a", [1], kv_transfer_params={"values": values}).kv_transfer_params
