"""Prompts are tokenized together, and each has its own result."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any
from unittest.mock import patch

import pytest

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, TokenizedPrompt
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.prompt_reader import (
    BATCH_TEXTS,
    OFFLINE_TEXTS,
    SHORT_TEXT,
    PromptReader,
    tokenized,
)
from paceline.engine.params import SamplingParams
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from tests.engine.support import tokenizer

LONG = "the quick brown fox " * 20
BROKEN = LONG + "\ud800"
SAID = [{"role": "user", "content": LONG}]


class Batches:
    """The calls of the tokenizer: how many texts each has, and whether it is on this thread."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.here: list[bool] = []
        self.texts: list[str] = []
        self.begun, self.hold = threading.Event(), threading.Event()
        self.hold.set()
        self._home, self._encode_all = threading.get_ident(), tokenizer().encode_all

    def encode_all(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        self.begun.set()
        assert self.hold.wait(30)
        if texts:
            self.sizes.append(len(texts))
            self.here.append(threading.get_ident() == self._home)
            self.texts += texts
        return self._encode_all(texts, special)


def frontend(max_model_len: int = 4096) -> Frontend:
    made = Frontend(tokenizer(), ChatTemplate.of(tokenizer()), monotonic)
    made.max_model_len = max_model_len
    return made


def with_reader(use: Callable[[PromptReader, Batches], Awaitable[None]]) -> None:
    async def run() -> None:
        batches = Batches()
        with patch.object(
            Tokenizer, "encode_all", lambda _, *texts, **kinds: batches.encode_all(*texts, **kinds)
        ):
            await use(PromptReader(frontend()), batches)

    asyncio.run(asyncio.wait_for(run(), 50))


def text(prompt: str) -> GenerationRequest:
    return GenerationRequest(prompt=prompt)


def test_texts_that_wait_are_read_in_one_call_and_as_alone() -> None:
    asked = [text(f"{number} {LONG}") for number in range(9)]
    asked += [GenerationRequest(messages=SAID), GenerationRequest(prompt_token_ids=[5, 6])]

    async def use(reader: PromptReader, batches: Batches) -> None:
        found = await asyncio.gather(*map(reader.read, asked))
        assert (batches.sizes, batches.here) == ([9, 1], [False, False])
        assert reader.waiting == 0
        for one, prompt in zip(asked[:9], found[:9], strict=True):
            assert prompt == TokenizedPrompt(tokenizer().encode(one.prompt or ""), one.prompt)
        assert found[9].text == frontend().text_of(asked[9])
        assert found[9].token_ids == tokenizer().encode(found[9].text or "", special=False)
        assert found[10] == TokenizedPrompt([5, 6])

    with_reader(use)


def test_batches_are_bounded_and_keep_the_order() -> None:
    asked = [text(f"{number} {LONG}") for number in range(2 * BATCH_TEXTS + 1)]

    async def use(reader: PromptReader, batches: Batches) -> None:
        ended: list[int] = []

        async def read(place: int) -> None:
            await reader.read(asked[place])
            ended.append(place)

        await asyncio.gather(*map(read, range(len(asked))))
        assert batches.sizes == [BATCH_TEXTS, BATCH_TEXTS, 1]
        assert batches.texts == [one.prompt for one in asked]
        assert ended == list(range(len(asked)))

    with_reader(use)


def test_a_short_text_is_read_at_once_unless_others_wait() -> None:
    async def use(reader: PromptReader, batches: Batches) -> None:
        await reader.read(text("x" * SHORT_TEXT))
        assert batches.sizes == []
        await asyncio.gather(reader.read(text(LONG)), reader.read(text("short")))
        assert batches.texts == [LONG, "short"]
        await reader.read(text("short"))
        assert len(batches.texts) == 2

    with_reader(use)


def test_a_text_that_is_refused_fails_alone() -> None:
    too_long = "hello " * 100_000
    given = [LONG, BROKEN, too_long, "short", "\udfff"]

    async def use(reader: PromptReader, batches: Batches) -> None:
        wanted = map(reader.read, map(text, given))
        found: list[Any] = await asyncio.gather(*wanted, return_exceptions=True)
        assert [type(one).__name__ for one in found] == [
            "TokenizedPrompt",
            "RequestError",
            "PromptTooLong",
            "TokenizedPrompt",
            "RequestError",
        ]
        assert f"character {len(LONG)} is an unpaired surrogate" in str(found[1])
        assert "tokens at least (600000 characters)" in str(found[2])
        assert batches.texts == [LONG, "short"]

    with_reader(use)


def test_a_text_without_tokens_fails_alone() -> None:
    encode_all = tokenizer().encode_all

    def picky(_: Tokenizer, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        if any("fox 7" in one for one in texts):
            raise ValueError("no token")
        return encode_all(texts, special)

    async def use(reader: PromptReader, _: Batches) -> None:
        with patch.object(Tokenizer, "encode_all", picky):
            asked = [reader.read(text(f"{LONG}fox {number}")) for number in range(9)]
            found = await asyncio.gather(*asked, return_exceptions=True)
        assert [place for place, one in enumerate(found) if isinstance(one, ValueError)] == [7]

    with_reader(use)


class TokenizerPanic(BaseException):
    """What a panic of the tokenizer's own language is in Python: no Exception."""


def test_a_text_that_makes_the_tokenizer_panic_fails_alone() -> None:
    encode_all = tokenizer().encode_all

    def fragile(_: Tokenizer, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        if any("panic" in one for one in texts):
            raise TokenizerPanic("index out of bounds")
        return encode_all(texts, special)

    async def use(reader: PromptReader, _: Batches) -> None:
        with patch.object(Tokenizer, "encode_all", fragile):
            asked = [reader.read(text(LONG + name)) for name in ("one", "panic", "other")]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(one).__name__ for one in found] == [
                "TokenizedPrompt",
                "RuntimeError",
                "TokenizedPrompt",
            ]
            assert (await reader.read(text(LONG))).text == LONG

    with_reader(use)


def test_an_interrupt_is_not_an_error_of_the_text() -> None:
    with (
        patch.object(Tokenizer, "encode_all", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        list(tokenized(frontend(), [text("a"), text("b")]))


def test_a_text_whose_client_hung_up_is_not_read() -> None:
    async def use(reader: PromptReader, batches: Batches) -> None:
        batches.hold.clear()
        names = ("begun", "waiting", "dropped", "last")
        tasks = {name: asyncio.create_task(reader.read(text(LONG + name))) for name in names[:1]}
        assert await asyncio.to_thread(batches.begun.wait, 30)
        tasks |= {name: asyncio.create_task(reader.read(text(LONG + name))) for name in names[1:]}
        await asyncio.sleep(0)
        for name in ("begun", "dropped"):
            tasks[name].cancel()
        await asyncio.sleep(0)
        batches.hold.set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert batches.texts == [LONG + name for name in ("begun", "waiting", "last")]
        assert tasks["last"].result().text == LONG + "last"
        assert reader.waiting == 0
        await reader.read(text(LONG))

    with_reader(use)


def test_prompts_of_a_script_are_read_together() -> None:
    batches, many = Batches(), OFFLINE_TEXTS + 3
    asked = [text(f"thing {number}") for number in range(many)]
    asked[1], asked[2] = text(BROKEN), GenerationRequest(prompt_token_ids=[5])
    asked[3] = GenerationRequest(messages=SAID, request_id="mine", priority=4)
    with patch.object(
        Tokenizer, "encode_all", lambda _, *texts, **kinds: batches.encode_all(*texts, **kinds)
    ):
        found = list(tokenized(frontend(), asked))
    assert batches.sizes == [OFFLINE_TEXTS - 3, 1, 3]
    assert (found[1], found[2]) == (asked[1], asked[2])  # `begin` refuses the first
    assert (found[3].request_id, found[3].priority, found[3].messages) == ("mine", 4, None)
    assert found[3].text == frontend().text_of(asked[3])
    for one, before in zip(found[4:], asked[4:], strict=True):
        assert one.prompt is None
        assert (one.text, one.prompt_token_ids) == (
            before.prompt,
            tokenizer().encode(before.prompt or ""),
        )
    with pytest.raises(RequestError, match="unpaired surrogate"):
        frontend().begin(found[1], None)  # type: ignore[arg-type]


# -- truncation -------------------------------------------------------------

IDS = tokenizer().encode(LONG)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, IDS[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, IDS[:5]),
        ({"truncate_prompt_tokens": len(IDS)}, IDS),
        (
            {
                "truncate_prompt_tokens": 5,
                "truncation_side": "right",
                "params": SamplingParams(truncate_prompt_tokens=3),
            },
            IDS[:5],
        ),
        ({"truncate_prompt_tokens": -1, "params": SamplingParams(max_tokens=4)}, IDS[-16:]),
        ({"truncate_prompt_tokens": -1, "params": SamplingParams(max_tokens=None)}, IDS[-19:]),
        ({"truncate_prompt_tokens": 10**6}, "maximum context length is 20 tokens"),
        ({"truncate_prompt_tokens": -1, "params": SamplingParams(max_tokens=20)}, "leaves no room"),
        ({}, "maximum context length is 20 tokens"),
    ],
)
def test_a_prompt_is_truncated_however_it_is_read(fields: dict[str, Any], kept: Any) -> None:
    max_model_len = 20 if isinstance(kept, str) or -1 in fields.values() else 4096
    front_end = frontend(max_model_len)

    async def read(generation: GenerationRequest) -> Any:
        return (await PromptReader(front_end).read(generation)).token_ids

    def read_offline(generation: GenerationRequest) -> Any:
        (found,) = tokenized(front_end, [generation])
        return front_end.encode(found).token_ids

    for generation in (
        GenerationRequest(prompt=LONG, **fields),
        GenerationRequest(prompt_token_ids=IDS, **fields),
    ):
        for way in (lambda one: asyncio.run(read(one)), read_offline):
            if isinstance(kept, str):
                with pytest.raises(RequestError, match=kept):
                    front_end._check_length(len(way(generation)), "tokens")
            else:
                assert list(way(generation)) == kept
