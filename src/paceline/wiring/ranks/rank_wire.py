"""Messages to the ranks of a model, as bytes. Their answers are those of a core."""

from typing import Any

import msgspec

from paceline.core.adapter import AdapterConfig
from paceline.core.settings.load import LoadConfig
from paceline.engine.transport.plan_wire import EncodedPlan
from paceline.engine.transport.wire import Close, read_only


class RankedModel(msgspec.Struct, array_like=True, frozen=True):
    """What all ranks load a part of, and how they exchange tensors."""

    name: str
    settings: dict[str, Any]  # of the scheduler; read them with `as_declared`
    load: LoadConfig
    adapters: AdapterConfig
    backend: str  # of torch.distributed


class BuildRank(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Load a part of a model, and run plans on it."""

    rank: int
    size: int
    store: str  # a file through which ranks find each other
    model: RankedModel


class ReadAdapter(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Read the files of an adapter. The answer is its version."""

    adapter: int  # the number under which it is kept
    path: str
    held: tuple[int, ...]  # earlier ones that may still be kept; others are forgotten


class ShareRows(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Copy blocks from now on through rows of a file: [ranks - 1, rows, bytes of a block]."""

    path: str
    rows: int


class CopyBlocks(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Copy blocks to the first rows, or these to blocks."""

    blocks: tuple[int, ...]
    to_host: bool


RankTask = ReadAdapter | ShareRows | CopyBlocks


class NumberedTask(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Work beside the steps. The answer has the same number."""

    number: int
    task: RankTask


class KeepAdapter(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Plans after this one may use an adapter that was read."""

    identity: str
    adapter: int


class DropAdapter(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """No further plan uses an adapter."""

    identity: str


ToRank = BuildRank | EncodedPlan | NumberedTask | KeepAdapter | DropAdapter | Close
to_rank = msgspec.msgpack.Decoder(ToRank, dec_hook=read_only)
