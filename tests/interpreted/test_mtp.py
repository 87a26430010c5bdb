"""An MTP head for a GPU drafts what one on a CPU does over whole sequences."""

import pytest

from paceline import Request
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import FULL, Case
from tests.gpu.cuda_backend import SMALL
from tests.gpu.mtp import compare_drafts
from tests.interpreted.host_device import large_programs, use_host

CASES = {
    "glm4moe": SMALL,
    "qwen3_5": {**SMALL, "layer_types": ["linear_attention", FULL]},
}


@pytest.mark.parametrize("architecture", CASES)
def test_drafts_are_those_of_a_head_on_a_cpu(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)
    use_host(monkeypatch)
    source, prompt = (
        Dummy(Case(architecture).config(**CASES[architecture]), seed=3),
        list(range(5, 11)),
    )
    asked = [Request(id="a", prompt=prompt, max_tokens=3, ignore_eos=True)]  # pyright: ignore[reportArgumentType]
    compare_drafts("cpu", source, asked, max_num_seqs=2, max_num_batched_tokens=4)
