"""What leaves is what it would be if each delta were encoded alone, however it leaves."""

import asyncio
import json
import random
from typing import Any

import pytest

from paceline.engine.api import Alternative, PromptLogprob, TextDelta, TokenLogprob
from tests.engine.support import tokenizer
from tests.server.fed import PROMPT, FedSite, FedStream, on_fed_server
from tests.server.reference_writers import references

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TALK = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "the"},
    CHAT: {"messages": TALK},
    MESSAGES: {"messages": TALK, "max_tokens": 500},
    RESPONSES: {"input": "hello"},
}
USAGE, RUNNING = {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    (MESSAGES, {}),
    (RESPONSES, {"timings": True}),
    (RESPONSES, {"top_logprobs": 2}),
    *[
        (path, fields)
        for path in (COMPLETIONS, CHAT)
        for fields in (
            {},
            {"n": 3, "stream_options": USAGE, "timings": True},
            {"n": 2, "stream_options": RUNNING},
            {"n": 2, "return_token_ids": True},
        )
    ],
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"n": 2, "echo": True, "add_generation_prompt": False}),
    (CHAT, {"logprobs": True, "return_tokens_as_token_ids": True, "stream_options": USAGE}),
    (COMPLETIONS, {"prompt": ["a", "b"], "logprobs": 1, "logprob_token_ids": [5, 7, 9]}),
    (COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}),
    (COMPLETIONS, {"prompt": ["a", 'b\n"c"'], "n": 2, "echo": True}),
    (COMPLETIONS, {"prompt": ["a", "b"], "logprobs": 2, "stream_options": RUNNING}),
    (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "echo": True, "logprobs": 1}),
    (COMPLETIONS, {"prompt": ["a", "b"], "echo": True, "return_token_ids": True}),
]
PIECES = [
    *("a", " the", "0", "1", '"', "\\", "/", "</script>", "\n", "\r\n", "\n\n", "\t", "\x00"),
    *("\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\ufffd", "\ufeff", "é", "你好", "😀", "👨‍👩‍👧"),
    *("data: [DONE]\n\n", "%b", "{}", "null"),
]


class RandomDeltas:
    """Deltas such as an engine makes, of the streams of one request."""

    def __init__(self, chance: random.Random, streams: list[FedStream]) -> None:
        self.chance, self.params = chance, streams[0].generation.params
        self.open = [(part, at) for part in range(len(streams)) for at in range(self.params.n)]
        self.begun: set[tuple[int, int]] = set()

    def next(self) -> tuple[int, TextDelta]:
        """The next one, and the part that it belongs to."""
        chance = self.chance
        which = part, index = chance.choice(self.open)
        ids = tuple(chance.randrange(4, 400) for _ in range(chance.choice((0, 1, 1, 1, 2, 7))))
        reason: Any = None
        if chance.random() < 0.08:
            reason = chance.choice(("stop", "length", "abort"))
            self.open.remove(which)
        scored = which not in self.begun and self.params.prompt_logprobs is not None
        self.begun.add(which)
        delta = TextDelta(
            index,
            "".join(chance.choices(PIECES, k=chance.choice((0, 1, 1, 1, 2, 5)))),
            ids,
            None if self.params.logprobs is None else tuple(self.scored(id) for id in ids),
            reason,
            chance.choice((None, "</s>\n", 7)) if reason == "stop" else None,
            [None, *(PromptLogprob(*self.pair(id), 3) for id in PROMPT[1:])] if scored else None,
        )
        return part, delta

    def scored(self, id: int) -> TokenLogprob:
        return TokenLogprob(*self.pair(id))

    def pair(self, id: int) -> tuple[Alternative, tuple[Alternative, ...]]:
        others = (self.alternative(self.chance.randrange(400)) for _ in range(2))
        return self.alternative(id), tuple(others)

    def alternative(self, id: int) -> Alternative:
        spelled, logprob = tokenizer().token_bytes(id), -self.chance.random() * 9
        return Alternative(
            id,
            self.chance.choice((logprob, logprob, float("-inf"))),
            spelled.decode(errors="replace"),
            spelled,
        )


async def written(site: FedSite, seed: int, path: str, fields: dict[str, Any]) -> None:
    """Play one request with random deltas, and compare what left with its reference."""
    client = await site.client()
    body = {**BODIES[path], "max_tokens": 500, **fields, "stream": True}
    with references() as made:
        client.post(path, json.dumps(body).encode())
        prompts = body.get("prompt")
        streams = await site.streams(len(prompts) if isinstance(prompts, list) else 1)
    (reference,) = made
    expected: Any = reference.opening([_stream(one) for one in streams])
    chance, has_begun = random.Random(f"{seed} {path} {fields}"), False
    deltas = RandomDeltas(chance, streams)
    for _ in range(60):
        if not deltas.open:
            break
        part, delta = deltas.next()
        expected += reference.delta(part, delta)
        streams[part].put(delta)
        if not has_begun and (delta.token_ids or delta.finish_reason != "abort"):
            has_begun = True
            await client.head()
        elif chance.random() < 0.3:
            await asyncio.sleep(0)
    for part, index in deltas.open:
        last = TextDelta(index, "", (), finish_reason="length")
        expected += reference.delta(part, last)
        streams[part].put(last)
    outputs = [stream.end() for stream in streams]
    expected += reference.closing(outputs)
    assert b"".join(await client.chunks()) == expected


def _stream(fed: FedStream) -> Any:
    class Prompt:
        prompt_tokens, prompt_token_ids = len(PROMPT), PROMPT

    return Prompt


@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_are_those_of_encoded_structs(seed: int) -> None:
    async def scenario(site: FedSite) -> None:
        for path, fields in CASES:
            await written(site, seed, path, fields)

    on_fed_server(scenario)
