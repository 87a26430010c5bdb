"""An executor of vLLM whose model is a hash of what it reads from the KV memory.

A wrong block, a wrong position or a token that got lost changes every later token.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput

VOCABULARY = 64
START = b"start"


def cell(before: bytes, token: int) -> bytes:
    """What a position holds: all tokens up to it decide."""
    return hashlib.blake2b(before + token.to_bytes(4, "big"), digest_size=8).digest()


def next_token(value: bytes) -> int:
    return 3 + int.from_bytes(value, "big") % (VOCABULARY - 3)


def answer(prompt: list[int], length: int) -> list[int]:
    """What the model says, without any memory."""
    value, found = START, []
    for token in prompt:
        value = cell(value, token)
    for _ in range(length):
        found.append(next_token(value))
        value = cell(value, found[-1])
    return found


@dataclass
class Known:
    """A request as a worker knows it."""

    tokens: list[int]
    prompt: int
    blocks: list[int]


@dataclass
class Row:
    id: str
    drafts: list[int]
    values: list[bytes]  # at the last known position and at those of the drafts; none: a chunk


class OracleExecutor(Executor):
    """One worker. Results have another order than the rows of the step."""

    def _init_executor(self) -> None:
        self.known: dict[str, Known] = {}
        self.memory: dict[tuple[int, int], bytes] = {}
        self.rows: list[Row] = []
        self.steps = 0

    @property
    def max_concurrent_batches(self) -> int:
        return 2 if self.scheduler_config.async_scheduling else 1

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        size = self.cache_config.block_size
        return [{"layer": FullAttentionSpec(size, 1, 16, torch.float16)}]

    def determine_available_memory(self) -> list[int]:
        return [1 << 24]

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        pass

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [("generate",)] if method == "get_supported_tasks" else [None]

    def check_health(self) -> None:
        pass

    # -- steps --------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        self.update(scheduler_output)
        tokens = scheduler_output.num_scheduled_tokens
        if not tokens:
            return self.reply(EMPTY_MODEL_RUNNER_OUTPUT, non_block)
        assert sum(tokens.values()) == scheduler_output.total_num_scheduled_tokens
        assert sum(tokens.values()) <= self.scheduler_config.max_num_batched_tokens
        assert len(tokens) <= self.scheduler_config.max_num_seqs
        self.steps += 1
        drafts = scheduler_output.scheduled_spec_decode_tokens
        started = {
            new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs
        }
        later = scheduler_output.scheduled_cached_reqs
        started |= dict(zip(later.req_ids, later.num_computed_tokens, strict=True))
        assert started.keys() == tokens.keys()
        self.rows = [
            self.compute(name, started[name], count, drafts.get(name, []))
            for name, count in tokens.items()
        ]
        return self.reply(None, non_block)

    def update(self, step: SchedulerOutput) -> None:
        for name in step.finished_req_ids:
            self.known.pop(name, None)
        for new in step.scheduled_new_reqs:
            assert new.req_id not in self.known
            prompt = list(new.prompt_token_ids)
            self.known[new.req_id] = Known(prompt, len(prompt), list(new.block_ids[0]))
        later = step.scheduled_cached_reqs
        columns = later.req_ids, later.new_block_ids, later.num_output_tokens
        for name, blocks, outputs in zip(*columns, strict=True):
            known = self.known[name]
            if name in later.resumed_req_ids:
                known.blocks = list(blocks[0])
            elif blocks is not None:
                known.blocks += blocks[0]
            if name in later.all_token_ids:
                known.tokens = list(later.all_token_ids[name])
            del known.tokens[known.prompt + outputs :]
            assert len(known.tokens) == known.prompt + outputs

    def compute(self, name: str, start: int, count: int, drafts: list[int]) -> Row:
        known, size = self.known[name], self.cache_config.block_size
        tokens = known.tokens + drafts
        end = start + count
        assert 0 < end <= len(tokens), "there is a token for every position"
        assert 0 not in known.blocks, "block 0 belongs to vLLM"
        place = lambda at: (known.blocks[at // size], at % size)
        for at in range(start, end):
            before = self.memory[place(at - 1)] if at else START
            self.memory[place(at)] = cell(before, tokens[at])
        if end < len(known.tokens):
            return Row(name, [], [])
        first = len(known.tokens) - 1
        return Row(name, drafts, [self.memory[place(at)] for at in range(first, end)])

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        masks: dict[str, Any] = {}
        if grammar_output is not None:
            rows = {row.id: row for row in self.rows}
            left = list(grammar_output.grammar_bitmask.copy())
            for name in grammar_output.structured_output_request_ids:
                masks[name] = [left.pop(0) for _ in range(1 + len(rows[name].drafts))]
            assert not left, "one mask for each token that may be sampled"
        sampled = {row.id: self.sample(row, masks.get(row.id)) for row in self.rows}
        ids = sorted(sampled, reverse=True)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: at for at, name in enumerate(ids)},
            sampled_token_ids=[sampled[name] for name in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        return self.reply(output, non_block)

    def sample(self, row: Row, masks: list[Any] | None) -> list[int]:
        found: list[int] = []
        for at, (value, draft) in enumerate(zip(row.values, [*row.drafts, -1], strict=False)):
            token = next_token(value)
            if masks is not None:
                bits = np.unpackbits(masks[at].view(np.uint8), bitorder="little")
                choices = np.flatnonzero(bits[:VOCABULARY])
                token = int(choices[token % len(choices)])
            found.append(token)
            if token != draft:
                break
        self.known[row.id].tokens += found
        return list(found)

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Two drafts for each request that sampled; the second one is often wrong."""
        sampling = [row.id for row in self.rows if row.values and row.id in self.known]
        drafts = []
        for name in sampling:
            tokens = self.known[name].tokens
            right = answer(tokens, 2)
            drafts.append([right[0], right[1] if len(tokens) % 3 else 3][: len(tokens) % 4])
        return DraftTokenIds(sampling, drafts)

    @staticmethod
    def reply(value: Any, non_block: bool) -> Any:
        if not non_block:
            return value
        future: Future[Any] = Future()
        future.set_result(value)
        return future
