"""The settings of multimodal input."""

from dataclasses import dataclass

from paceline.core.setting_checks import check_types, not_negative


@dataclass(frozen=True, slots=True)
class MultimodalConfig:
    """How much a step encodes, and how much of that is kept. An embedding stands for one position
    of a multimodal item. The names are those of vLLM."""

    max_num_encoder_input_tokens: int = 0  # embeddings per step; 0: as max_num_batched_tokens
    encoder_cache_size: int = 0  # embeddings that are kept; 0: as max_num_batched_tokens
    disable_chunked_mm_input: bool = False  # compute all positions of an item in one step

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "max_num_encoder_input_tokens", "encoder_cache_size")
