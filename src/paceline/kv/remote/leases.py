"""Blocks kept for other engines until they are read or a lease ends, and who may read them."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from paceline.core.errors import ConfigError
from paceline.kv.connector import Transfer
from paceline.kv.fence import TransferTicket


@dataclass(slots=True)
class Lease:
    """The blocks of a finished prompt, and until when they are kept."""

    transfer: Transfer
    end: float
    readers: int = 0  # that claimed them and have not ended


class Leases:
    """Leases by name. Each ends once: its last reader has ended, or its time is over.

    A reader must claim the blocks before it reads. A granted claim keeps them for `read_s` from
    then on, and the reader discards what it reads later. Both sides measure this time by their own
    clocks, and the reader from before it asked, so the clocks need not agree.
    """

    def __init__(self, lease_s: float, read_s: float) -> None:
        self.lease_s, self.read_s = lease_s, read_s
        self._open: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_claimed(self) -> bool:
        """Whether any blocks are being read."""
        return any(lease.readers for lease in self._open.values())

    def add(self, name: str, transfer: Transfer, now: float) -> None:
        self._open[name] = Lease(transfer, now + self.lease_s)

    def claim(self, name: str, first: int, end: int, key: bytes, now: float) -> tuple[int, ...]:
        """The blocks from `first` to `end`, for a reader. OSError says why it must not read them.

        `key` is the key of the last one, which names the content of all blocks up to it.
        """
        lease = self._open.get(name)
        if lease is None or lease.end <= now:
            raise OSError(f"the blocks of request {name!r} are no longer kept")
        kept = lease.transfer
        if not 0 <= first < end <= len(kept.blocks):
            raise OSError(f"request {name!r} has {len(kept.blocks)} blocks, not {first} to {end}")
        if kept.keys[end - 1] != key:
            raise OSError(f"the blocks of request {name!r} have another prompt")
        lease.end = max(lease.end, now + self.read_s)
        lease.readers += 1
        return kept.blocks[first:end]

    def was_read(self, name: str) -> TransferTicket | None:
        """A reader has ended. Returns the ticket if it was the last one."""
        if (lease := self._open.get(name)) is not None:
            lease.readers -= 1
        return self.release(name)

    def release(self, name: str) -> TransferTicket | None:
        """An engine does not want the blocks. Returns the ticket, unless others read them."""
        lease = self._open.get(name)
        if lease is None or lease.readers > 0:
            return None
        del self._open[name]
        return lease.transfer.ticket

    def expired(self, now: float) -> list[tuple[str, TransferTicket]]:
        """End the leases whose time is over. Returns their names and tickets."""
        over = [name for name, lease in self._open.items() if lease.end <= now]
        return [(name, self._open.pop(name).transfer.ticket) for name in over]


class LeasedBlocks:
    """The blocks of all leases, for the engine's thread, which must not keep too many."""

    def __init__(self) -> None:
        self._blocks: dict[TransferTicket, tuple[int, ...]] = {}
        self._leases: Counter[int] = Counter()  # of each block

    def add(self, transfer: Transfer, most: int) -> bool:
        """Count the blocks of a lease. False if that would make more than `most` of them."""
        new = sum(1 for block in transfer.blocks if block not in self._leases)
        if len(self._leases) + new > most:
            return False
        self._blocks[transfer.ticket] = transfer.blocks
        self._leases.update(transfer.blocks)
        return True

    def remove(self, ticket: TransferTicket) -> None:
        """A transfer has ended; it may have been a lease."""
        for block in self._blocks.pop(ticket, ()):
            self._leases[block] -= 1
            if not self._leases[block]:
                del self._leases[block]


NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?")


class AllowedPeers:
    """Hosts by name, by address, or by network such as 10.1.0.0/16. An empty list allows all.

    Names are compared as they are written: they are not resolved.
    """

    def __init__(self, listed: Sequence[Any]) -> None:
        """ConfigError if an entry is none of these."""
        plain = [str(one or "").strip("[]").lower() for one in listed]
        networks = [network_of(one) for one in plain]
        self._networks = [one for one in networks if one is not None]
        self._names = {name for name, one in zip(plain, networks, strict=True) if one is None}
        for name in self._names:
            if not NAME.fullmatch(name):
                raise ConfigError(
                    f"allowed_peers has {name!r}; list hosts by name, by address, or by network "
                    "such as 10.1.0.0/16, without ports"
                )

    def has(self, host: str) -> bool:
        """Whether KV may be read from a host."""
        if not (self._names or self._networks):
            return True
        plain = host.strip("[]").lower()
        try:
            address = ip_address(plain)
        except ValueError:
            return plain in self._names
        return any(address in network for network in self._networks)


def network_of(text: str) -> Any:
    """The network, or the address as a network; None if it is neither."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
