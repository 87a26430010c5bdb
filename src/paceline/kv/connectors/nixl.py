"""KV that engines read from each other: prefill on one, decode on another, by NIXL."""

from collections import deque
from collections.abc import Mapping, Sequence
from time import time
from typing import Any
from uuid import uuid4

from paceline.core.errors import ConfigError, RequestError
from paceline.core.kv_transfer import KVTransfer
from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import BlockStore, Connector, News, Transfer, TransferEnd, options
from paceline.kv.remote.agent import BlockReader
from paceline.kv.remote.exchange import BlockExchange, ExchangeSettings
from paceline.kv.remote.leases import AllowedPeers, LeasedBlocks

EVERY_ADDRESS = ("", "*", "0.0.0.0", "::", "[::]")  # not one that another engine can connect to
REMEMBERED = 1 << 12  # requests of others whose blocks were read or given back


class Nixl(Connector):
    """Keeps the blocks of prompts with `do_remote_decode`, and reads blocks of other engines for
    requests with `do_remote_prefill`.

    Nothing is stored by content: KV goes from one engine to one other. A reader proves by the key
    of the last block that it has the same prompt.
    """

    hands_over = True
    needs_memory = True

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        self._options = options(
            config,
            ("lease_s", "read_s", "answer_s", "max_peer_blocks", "max_leased_share"),
            side_channel_host="127.0.0.1",
            side_channel_port=0,
            allowed_peers=[],
            lease_s=60.0,
            read_s=10.0,
            answer_s=5.0,
            max_peer_blocks=1 << 20,
            max_leased_share=0.75,
        )
        if (share := self._options["max_leased_share"]) > 1:
            raise ConfigError(f"max_leased_share is {share}; it must not be more than 1")
        self._allowed = AllowedPeers(self._options["allowed_peers"])
        if (host := self._options["side_channel_host"]) in EVERY_ADDRESS:
            raise ConfigError(
                f"side_channel_host is {host!r}; other engines connect to it, so it must be an "
                "address of this machine"
            )
        self._engine_id = config.engine_id or uuid4().hex
        self._ended: deque[TransferEnd] = deque()
        self._done_with: dict[str, None] = {}  # requests of others, oldest first
        self._leased = LeasedBlocks()

    def attach(self, store: BlockStore, news: News) -> None:
        def ended(end: TransferEnd) -> None:
            self._ended.append(end)
            news()

        if store.memory is None:
            raise ConfigError("kv_connector 'nixl' needs blocks that lie one after another")
        self._most_leased = int(self._options["max_leased_share"] * store.memory.blocks)
        try:
            reader = BlockReader(self._engine_id, store.layout, store.memory)
            self._exchange = BlockExchange(self._settings(), reader, ended)
        except OSError as error:
            raise ConfigError(f"kv_connector 'nixl' cannot start: {error}") from None

    def _settings(self) -> ExchangeSettings:
        chosen = self._options
        return ExchangeSettings(
            chosen["side_channel_host"],
            chosen["side_channel_port"],
            chosen["lease_s"],
            chosen["read_s"],
            chosen["answer_s"],
            chosen["max_peer_blocks"],
        )

    def check(self, request: Request) -> None:
        found = KVTransfer.of(request.kv_transfer_params)
        if found is None:
            return
        if found.do_remote_decode and self.config.kv_role == "kv_consumer":
            raise RequestError(
                "kv_transfer_params: do_remote_decode is for a prefill engine, and the role of "
                "this one is decode"
            )
        if found.do_remote_decode and request.width > 1:
            raise RequestError(
                "kv_transfer_params: do_remote_decode needs one sequence; remove n, best_of and "
                "beam_width"
            )
        if found.do_remote_prefill and self.config.kv_role == "kv_producer":
            raise RequestError(
                "kv_transfer_params: do_remote_prefill is for a decode engine, and the role of "
                "this one is prefill"
            )
        if found.do_remote_prefill and not self._allowed.has(found.remote_host):
            raise RequestError(
                f"kv_transfer_params: remote_host is {found.remote_host!r:.100}, which is not one "
                "of the allowed_peers of this engine"
            )

    # -- loading ------------------------------------------------------------

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int:
        remote = KVTransfer.of(request.kv_transfer_params)
        if remote is None or not remote.do_remote_prefill:
            return 0
        more = min(len(keys), len(remote.remote_block_ids)) - have
        if more <= 0:
            self._give_back(remote)
        return max(more, 0)

    def _give_back(self, remote: KVTransfer) -> None:
        """All blocks are here already."""
        if remote.remote_request_id not in self._done_with:
            self._note_done(remote)
            self._exchange.release(remote)

    def _note_done(self, remote: KVTransfer) -> None:
        self._done_with[remote.remote_request_id] = None
        if len(self._done_with) > REMEMBERED:
            del self._done_with[next(iter(self._done_with))]

    def fetch(self, transfer: Transfer) -> None:
        remote = KVTransfer.of(transfer.request.kv_transfer_params)
        assert remote is not None, "only requests with a transfer are offered blocks"
        self._note_done(remote)
        self._exchange.fetch(transfer, remote)

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        return len(keys)  # nothing is stored by content

    def store(self, transfer: Transfer) -> None:
        self._ended.append(TransferEnd(transfer.ticket))

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        asked = KVTransfer.of(transfer.request.kv_transfer_params)
        if asked is None or not asked.do_remote_decode or not transfer.blocks:
            return None
        assert transfer.first == 0, "all blocks of a request are kept"
        if not self._leased.add(transfer, self._most_leased):
            return None
        # A later request may have the same id.
        name = f"{transfer.request.id}-{transfer.ticket.id}"
        self._exchange.keep(name, transfer)
        kept = KVTransfer(
            do_remote_prefill=True,
            remote_engine_id=self._engine_id,
            remote_request_id=name,
            remote_host=self._options["side_channel_host"],
            remote_port=self._exchange.port,
            remote_block_ids=transfer.blocks,
            remote_num_tokens=len(transfer.request.prompt),
            remote_blocks_expiry_time=time() + self._options["lease_s"],
        )
        return kept.to_params()

    # -- both ---------------------------------------------------------------

    def poll(self) -> Sequence[TransferEnd]:
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        for end in ended:
            self._leased.remove(end.ticket)
        return ended

    def close(self) -> None:
        self._exchange.close()
