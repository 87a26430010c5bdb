from typing import Any

class DraftTokenIds:
    req_ids: list[str]
    draft_token_ids: list[list[int]]

class ModelRunnerOutput:
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]
    logprobs: Any
    prompt_logprobs_dict: dict[str, Any]
    num_nans_in_logits: dict[str, int] | None
    cudagraph_stats: Any
