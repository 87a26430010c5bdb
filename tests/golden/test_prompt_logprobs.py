"""Log-probabilities of prompts against transformers', through the whole engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.engine.api import RequestOutput
from tests.conformance.architectures import tokens_of
from tests.golden.small_model import small_model
from tests.server.real import ENGINE

LENGTHS = [37, 5, 1, 24, 52]
WORDS = 70  # fewer than the tokenizer has
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "in chunks": {"max_num_batched_tokens": 7},
    "tight": {"num_gpu_blocks_override": 12, "block_size": 8, "max_num_batched_tokens": 24},
    "ahead": {"depth": 2, "max_num_batched_tokens": 16},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return model.requires_grad_(False)


def check(theirs: Any, output: RequestOutput, wanted: int) -> None:
    ids, told = output.prompt_token_ids, output.prompt_logprobs
    assert not output.error
    assert told is not None
    assert told[0] is None
    expected = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)  # [positions, vocab]
    for place, (id, entry) in enumerate(zip(ids[1:], told[1:], strict=True)):
        row = expected[place]
        assert entry is not None
        assert entry.chosen.token_id == id
        assert entry.chosen.logprob == pytest.approx(float(row[id]), abs=1e-4)
        assert entry.rank == int((row > row[id]).sum()) + 1
        best = [(one.token_id, one.logprob) for one in entry.top]
        ranked = row.topk(wanted)
        assert best == [
            (id, pytest.approx(value, abs=1e-4))
            for id, value in zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True)
        ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 2])
def test_every_token_beside_neighbours(folder: Path, theirs: Any, way: str, n: int) -> None:
    llm = LLM(str(folder), **{**ENGINE, **WAYS[way]})
    prompts = [[id % WORDS for id in tokens_of(length, seed=length)] for length in LENGTHS]
    asked = SamplingParams(prompt_logprobs=4, n=n, max_tokens=16, ignore_eos=True, seed=1)
    silent = SamplingParams(max_tokens=9)
    params = [asked, asked, asked, asked, asked, silent]
    *outputs, other = llm.generate([*prompts, prompts[0]], params, progress=False)
    plain = llm.generate(prompts, replace(asked, prompt_logprobs=None), progress=False)
    for output, quiet in zip(outputs, plain, strict=True):
        check(theirs, output, 4)
        tokens = [answer.token_ids for answer in output.outputs]
        assert tokens == [answer.token_ids for answer in quiet.outputs]
    assert other.prompt_logprobs is None
    if way == "tight":
        assert sum(output.timings.preemptions for output in outputs)
