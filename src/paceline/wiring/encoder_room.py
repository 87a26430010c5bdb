"""Room to encode the largest image of a model."""

from collections.abc import Mapping
from typing import Any

from paceline.engine.core.ports import PromptImages

SIZES = ("max_num_encoder_input_tokens", "encoder_cache_size")


def with_encoder_room(
    settings: Mapping[str, Any], images: PromptImages | None, usual_tokens: int, longest: int
) -> dict[str, Any]:
    """The settings, in which sizes of the encoder that are not given suffice for the largest image.

    Without them, a step encodes as much as it computes: `usual_tokens`, unless that is given. A
    prompt has at most `longest` tokens. Without chunked prefill, a step computes as many.
    """
    chosen = dict(settings)
    if images is None or not chosen.get("enable_chunked_prefill", True):
        return chosen
    largest = min(images.largest, chosen.get("max_model_len", longest))
    if largest > chosen.get("max_num_batched_tokens", usual_tokens):
        chosen |= {name: largest for name in SIZES if not chosen.get(name)}
    return chosen
