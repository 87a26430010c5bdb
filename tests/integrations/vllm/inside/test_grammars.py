"""Structured output in vLLM's engine with our scheduler, by xgrammar."""

import json
import re
import string
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.executor import uniproc_executor

from tests.integrations.vllm.inside.oracle_executor import VOCABULARY, OracleExecutor, answer
from tests.integrations.vllm.inside.test_engine import MODEL, OURS, with_drafts

SPECIAL = ["<s>", "<unk>", "</s>"]
LETTERS = (string.digits + string.ascii_lowercase + "-+*/=.,:;!?()[]{}<>_@#")[: VOCABULARY - 3]


def write_model(folder: Path) -> str:
    """A tokenizer of single characters, which end with a token of their own."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 256}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | kind))
    ends = {"bos_token_id": 0, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(MODEL | ends))
    return str(folder)


DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.mark.parametrize(
    "settings",
    [{}, {"async_scheduling": True}, {"speculative_config": DRAFTS}],
    ids=["plain", "async", "drafts"],
)
def test_outputs_follow_their_grammar_beside_free_ones(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uniproc_executor, "UniProcExecutor", OracleExecutor)
    llm = LLM(
        model=write_model(tmp_path),
        distributed_executor_backend="uni",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        block_size=8,
        num_gpu_blocks_override=18,
        scheduler_cls=OURS,
        **{"async_scheduling": False} | settings,
    )
    with_drafts(llm)
    pattern = "[0-9]{3}-[a-c]{4,9}=(yes|no)"
    grammar = StructuredOutputsParams(regex=pattern)
    bound = SamplingParams(max_tokens=40, structured_outputs=grammar, temperature=0.0)
    free = SamplingParams(max_tokens=25, ignore_eos=True)
    asked = [{"prompt_token_ids": list(range(3, 8 + number))} for number in range(10)]
    params = [bound if number % 2 else free for number in range(10)]
    outputs = llm.generate(asked, params, use_tqdm=False)
    for prompt, param, output in zip(asked, params, outputs, strict=True):
        if param is bound:
            assert re.fullmatch(pattern, output.outputs[0].text), output.outputs[0].text
            assert output.outputs[0].finish_reason == "stop"
        else:
            assert output.outputs[0].token_ids == answer(prompt["prompt_token_ids"], 25)
