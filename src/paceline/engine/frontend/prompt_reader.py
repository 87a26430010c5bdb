"""Tokenizes prompts, those that wait together in one call."""

from asyncio import Future, Task, create_task, get_running_loop
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, TokenizedPrompt
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.long_work import LongWork
from paceline.engine.prompts import is_short

SHORT_TEXT = 256  # characters; to read one takes about as long as to pass it to a thread
BATCH_TEXTS = 64  # their results are made under the interpreter lock, in about 2 ms
OFFLINE_TEXTS = 512  # a longer batch would delay an interrupt by seconds


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text to tokenize; `framed` adds the special tokens at its start and end.

    One that is not `is_whole` is truncated afterwards, so that it may be of any length.
    """

    text: str
    framed: bool
    is_whole: bool = True

    @classmethod
    def of(cls, generation: GenerationRequest, text: str) -> "PromptText":
        is_whole = generation.most_prompt_tokens is None
        return cls(text, framed=generation.framed, is_whole=is_whole)


Ids = list[int] | Exception  # of one text, or why it has none


@dataclass(frozen=True, slots=True, eq=False)
class WaitingText:
    """A text in the queue, and the future of its token ids."""

    given: PromptText
    ids: Future[list[int]]


class PromptReader:
    """Reads prompts for an event loop. Long texts wait in a queue, in the order in which they came.

    A thread reads one batch at a time; texts that come meanwhile form the next one. A text whose
    caller was cancelled before its batch began is not read.
    """

    def __init__(self, frontend: Frontend) -> None:
        self._frontend, self._work = frontend, LongWork()
        self._queue: deque[WaitingText] = deque()
        self._reader: Task[None] | None = None  # while there are texts to read
        self.waiting = 0  # prompts that are being read

    async def read(
        self, generation: GenerationRequest, images: Sequence[Any] | None = None
    ) -> TokenizedPrompt:
        """The token ids of a prompt, with its own images or others. RequestError if it has none."""
        self.waiting += 1
        try:
            text = await self._text_of(generation)
            if text is None:
                text, ids = generation.text, generation.prompt_token_ids or ()
            else:
                ids = await self._ids_of(PromptText.of(generation, text))
            images = generation.all_images() if images is None else images
            if images:
                return await self._work.run(self._frontend.whole, generation, text, ids, images)
            return self._frontend.whole(generation, text, ids, images)
        finally:
            self.waiting -= 1

    async def _ids_of(self, given: PromptText) -> list[int]:
        longest = min(SHORT_TEXT, self._frontend.max_model_len)
        if self._reader is None and len(given.text) <= longest:
            return self._frontend.ids_of(given.text, given.framed)
        return await self._queued(given)

    async def _text_of(self, generation: GenerationRequest) -> str | None:
        if is_short(generation):
            return self._frontend.text_of(generation)
        return await self._work.run(self._frontend.text_of, generation)

    async def _queued(self, given: PromptText) -> list[int]:
        one = WaitingText(given, get_running_loop().create_future())
        self._queue.append(one)
        if self._reader is None:
            self._reader = create_task(self._read_queue())
        return await one.ids

    async def _read_queue(self) -> None:
        try:
            while batch := self._next_batch():
                texts = [one.given for one in batch]
                found = await self._work.run(ids_of_all, self._frontend, texts)
                for one, ids in zip(batch, found, strict=True):
                    settle(one.ids, ids)
        finally:
            self._reader = None

    def _next_batch(self) -> list[WaitingText]:
        """The oldest texts that are still wanted."""
        batch: list[WaitingText] = []
        while self._queue and len(batch) < BATCH_TEXTS:
            one = self._queue.popleft()
            if not one.ids.done():  # its caller was not cancelled
                batch.append(one)
        return batch


def settle(future: Future[list[int]], ids: Ids) -> None:
    if future.done():  # its caller was cancelled meanwhile
        return
    if isinstance(ids, Exception):
        future.set_exception(ids)
    else:
        future.set_result(ids)


def tokenized(
    frontend: Frontend, generations: Sequence[GenerationRequest]
) -> Iterator[GenerationRequest]:
    """The same requests with token ids, many texts at a time.

    A request whose text is refused comes out as it is: `Frontend.begin` raises the reason.
    """
    for start in range(0, len(generations), OFFLINE_TEXTS):
        yield from batch_tokenized(frontend, generations[start : start + OFFLINE_TEXTS])


def batch_tokenized(
    frontend: Frontend, generations: Sequence[GenerationRequest]
) -> list[GenerationRequest]:
    found, texts = list(generations), dict[int, PromptText]()
    for index, generation in enumerate(generations):
        with suppress(RequestError):
            if (text := frontend.text_of(generation)) is not None:
                texts[index] = PromptText.of(generation, text)
    for (index, given), ids in zip(
        texts.items(), ids_of_all(frontend, list(texts.values())), strict=True
    ):
        if isinstance(ids, Exception):
            continue
        generation = generations[index]
        with suppress(RequestError):
            images = generation.all_images()
            prompt = frontend.whole(generation, given.text, ids, images)
            found[index] = generation.ready(prompt)
    return found


def ids_of_all(frontend: Frontend, texts: Sequence[PromptText]) -> list[Ids]:
    """Tokenize texts on all cores, on any thread. Each is refused alone."""
    found: dict[int, Ids] = {}
    framed: dict[bool, list[int]] = {True: [], False: []}  # indices of texts to read
    for index, one in enumerate(texts):
        try:
            frontend.check_text(one.text, one.is_whole)
            framed[one.framed].append(index)
        except RequestError as error:
            found[index] = error
    for special, indices in framed.items():
        if not indices:
            continue
        ids = encoded(frontend, [texts[index].text for index in indices], special)
        found.update(zip(indices, ids, strict=True))
    return [found[index] for index in range(len(texts))]


def encoded(frontend: Frontend, texts: Sequence[str], special: bool) -> list[Ids]:
    try:
        return [*frontend.ids_of_all(texts, special)]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the tokenizer is no Exception
        if len(texts) == 1:
            return [error if isinstance(error, Exception) else RuntimeError(str(error))]
        return [ids for text in texts for ids in encoded(frontend, [text], special)]
