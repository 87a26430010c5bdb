"""Parameters of requests, under the module name that vLLM has."""

from paceline.engine.params import SamplingParams
from paceline.engine.vllm_forms import BeamSearchParams, PoolingParams, StructuredOutputsParams

GuidedDecodingParams = StructuredOutputsParams  # its older name

__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "PoolingParams",
    "SamplingParams",
    "StructuredOutputsParams",
]
