"""What type checkers say of calls: an ignored line without its error is an error (see pyproject).

Nothing here is run.
"""

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.wiring import cpu, cuda
from paceline.wiring.device import Device


def modules_are_devices() -> tuple[Device, Device]:
    return cpu, cuda


def settings_are_known() -> None:
    LLM("smollm2", max_model_len=64, trust_remote_code=True, kv_transfer_config={"kv_role": "both"})
    LLM(model="smollm2", dtype="half", block_size=None, hf_overrides={}, pipeline_parallel_size=1)
    LLM("smollm2", max_modle_len=3)  # pyright: ignore[reportCallIssue]
    LLM("smollm2", max_model_len="3")  # pyright: ignore[reportArgumentType]
    AsyncLLM("smollm2", max_modle_len=3)  # pyright: ignore[reportCallIssue]


def embeddings_are_not_optional(llm: LLM) -> list[float]:
    return llm.embed("x")[0].outputs.embedding


def scores_are_not_optional(llm: LLM) -> float:
    return llm.score("x", "y")[0].outputs.score


def sampling_params_are_known(llm: LLM) -> str:
    SamplingParams(temprature=1)  # pyright: ignore[reportCallIssue]
    return llm.generate("x", SamplingParams(max_tokens=3))[0].outputs[0].text
