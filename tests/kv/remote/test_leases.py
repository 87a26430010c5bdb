"""Blocks are kept until they were read or their lease ends, for the same prompt and known peers."""

import pytest

from paceline.core.errors import ConfigError
from paceline.kv.fence import TransferTicket
from paceline.kv.remote.leases import AllowedPeers, LeasedBlocks, Leases
from tests.kv.block_array import keys_of, transfer

KEYS = keys_of(1, 2, 3)


def leased() -> Leases:
    leases = Leases(lease_s=10.0, read_s=4.0)
    leases.add("a", transfer(7, KEYS, [4, 0, 9]), now=100.0)
    return leases


def test_a_claim_has_the_blocks_it_names() -> None:
    leases = leased()
    assert not leases.is_claimed
    assert leases.claim("a", 1, 3, KEYS[2], 101.0) == (0, 9)
    assert leases.is_claimed
    assert leases.was_read("a") == TransferTicket(7)
    assert leases.was_read("a") is None
    assert (len(leases), leases.expired(1000.0)) == (0, [])


def test_a_claim_keeps_blocks_for_as_long_as_a_read_may_take() -> None:
    leases = leased()
    leases.claim("a", 0, 1, KEYS[0], 109.0)
    assert leases.expired(112.9) == []
    assert leases.expired(113.0) == [("a", TransferTicket(7))]
    assert len(leases) == 0


def test_blocks_are_kept_until_the_last_reader_has_ended() -> None:
    leases = leased()
    for _ in range(2):
        leases.claim("a", 0, 3, KEYS[2], 101.0)
    assert leases.release("a") is None  # another engine does not want them
    assert leases.was_read("a") is None
    assert leases.was_read("a") == TransferTicket(7)


def test_blocks_that_no_engine_wants_are_freed() -> None:
    leases = leased()
    assert leases.release("a") == TransferTicket(7)
    assert leases.release("a") is None


@pytest.mark.parametrize(
    ("name", "first", "end", "key", "now", "reason"),
    [
        ("b", 0, 1, KEYS[0], 101.0, "no longer kept"),
        ("a", 0, 1, KEYS[0], 110.0, "no longer kept"),
        ("a", 0, 4, KEYS[2], 101.0, "has 3 blocks, not 0 to 4"),
        ("a", 2, 2, KEYS[1], 101.0, "has 3 blocks"),
        ("a", 0, 2, KEYS[2], 101.0, "another prompt"),
    ],
)
def test_a_claim_is_refused(
    name: str, first: int, end: int, key: bytes, now: float, reason: str
) -> None:
    leases = leased()
    with pytest.raises(OSError, match=reason):
        leases.claim(name, first, end, key, now)
    assert not leases.is_claimed


def test_blocks_of_leases_are_counted_once_each() -> None:
    leased = LeasedBlocks()
    assert leased.add(transfer(1, keys_of(1, 2), [4, 0]), 3)
    assert leased.add(transfer(2, keys_of(1, 3), [4, 7]), 3)
    assert not leased.add(transfer(3, keys_of(9), [9]), 3)
    leased.remove(TransferTicket(1))
    leased.remove(TransferTicket(8))  # another transfer
    assert leased.add(transfer(3, keys_of(9), [9]), 3)
    assert not leased.add(transfer(4, keys_of(8), [0]), 3)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.2.3", True),
        ("10.2.0.1", False),
        ("::1", True),
        ("[::1]", True),
        ("Prefill-0.prefill", True),
        ("prefill-1.prefill", False),
        ("", False),
    ],
)
def test_hosts_are_allowed_by_name_address_and_network(host: str, allowed: bool) -> None:
    assert AllowedPeers(["10.1.0.0/16", "::1", "prefill-0.Prefill"]).has(host) == allowed
    assert AllowedPeers([]).has(host)


@pytest.mark.parametrize("entry", ["10.0.0.1:5600", "a b", "", None, "*"])
def test_an_entry_that_is_no_host_is_named(entry: object) -> None:
    with pytest.raises(ConfigError, match=r"allowed_peers has .*without ports"):
        AllowedPeers([entry])
