"""A small profile and small loads."""

from collections.abc import Mapping
from typing import Any

from paceline.simulator.device.profile import Profile
from paceline.simulator.loads import Clients, Phase, SyntheticLoad
from paceline.simulator.server import ServerModel
from paceline.workloads.call import LengthDistribution

SMALL = {
    "num_blocks": 64,
    "block_size": 8,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 256,
}
VALUES = {
    "format": 1,
    "name": "small",
    "device": "a small device",
    "model": "a small model",
    "settings": SMALL,
    "decode": {"fixed_s": 0.01},
    "mixed": {"fixed_s": 0.01, "positions": [[0, 0], [1, 0.001]]},
}


def model(**settings: Any) -> ServerModel:
    return ServerModel(Profile.of(VALUES), settings)


def load(
    count: int = 40, rate: float = 5.0, tenants: Mapping[str, float] | None = None
) -> SyntheticLoad:
    return SyntheticLoad(
        count,
        (Phase(rate),),
        input_len=LengthDistribution.parse("8-60"),
        output_len=LengthDistribution.parse("4-30"),
        prefix_len=8,
        clients=Clients(tenants or {}),
    )
