"""Messages to the ranks of a model, as bytes. Their answers are those of a core."""

from typing import Any

import msgspec

from paceline.engine.core.plan_wire import EncodedPlan
from paceline.engine.core.wire import Close


class BuildRank(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Load a part of a model, and run plans on it."""

    rank: int
    size: int
    backend: str  # of torch.distributed
    store: str  # a file through which ranks find each other
    model: str
    settings: dict[str, Any]  # of the scheduler, as rank 0 has them
    load: dict[str, Any]  # `LoadConfig`


ToRank = BuildRank | EncodedPlan | Close
to_rank = msgspec.msgpack.Decoder(ToRank)
