"""Many prompts at once, in this thread: a model to call from a script."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from numbers import Integral
from typing import Any, cast

from paceline.core.errors import PacelineError, RequestError
from paceline.core.request import Finish, Request
from paceline.engine.api import (
    Answer,
    Ask,
    Message,
    Piece,
    Report,
    RequestOutput,
    SamplingParams,
    Usage,
)
from paceline.engine.core.components import Factory
from paceline.engine.core.messages import NO_TIMINGS, EngineFailed, Question
from paceline.engine.frontend.progress import Progress
from paceline.engine.interrupts import held_back

Prompt = str | Sequence[int] | Ask
Params = SamplingParams | Sequence[SamplingParams]


class Collector:
    """Keeps whole outputs by request, and lets the pieces go."""

    def __init__(self, request_id: str, done: dict[str, RequestOutput]) -> None:
        self._request_id, self._done = request_id, done

    def put(self, piece: Piece) -> None:
        pass

    def close(self, output: RequestOutput) -> None:
        self._done[self._request_id] = output

    def refuse(self, error: PacelineError) -> None:
        self._done[self._request_id] = refusal(self._request_id, error)


def refusal(request_id: str, error: PacelineError) -> RequestOutput:
    """The output of a request that never began."""
    nothing = Answer(0, "", (), finish_reason="error")
    return RequestOutput(
        request_id, None, (), (nothing,), Usage(0, 0, 0), NO_TIMINGS, error=str(error)
    )


class LLM:
    """Results come in the order of the prompts. Requests that were enqueued run beside them.

    A prompt that cannot be run does not hold the others up: its output has the finish reason
    "error", and `error` says why.
    """

    def __init__(self, model: str, build: Factory, **settings: Any) -> None:
        parts = build(model, **settings)
        self.model = model
        self._engine = parts.engine()
        self._frontend = parts.frontend(self._engine)
        self._backlog: dict[str, Request] = {}  # for which the engine has no room yet
        self._done: dict[str, RequestOutput] = {}  # ended, and not handed out
        self._names = 0

    # -- many at once -------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: Params | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt: a text, its token ids, or an Ask."""
        asks = [asked(prompt) for prompt in several(prompts)]
        return self._run(with_params(asks, params), progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params | None = None,
        *,
        progress: bool = True,
        variables: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several; `variables` are the chat template's own."""
        asks = [Ask(messages=one, variables=variables) for one in conversations(messages)]
        return self._run(with_params(asks, params), progress)

    def _run(self, asks: list[Ask], progress: bool) -> list[RequestOutput]:
        names: list[str] = []
        refused: dict[int, RequestOutput] = {}  # by place, since a name may be another's
        try:
            for place, ask in enumerate(asks):
                name = ask.request_id or self._name()
                try:
                    self.enqueue(replace(ask, request_id=name))
                    names.append(name)
                except RequestError as error:
                    refused[place] = refusal(name, error)
            self._turn_until_done(names, Progress(len(names)) if progress else None)
        except BaseException:
            self._drop(names)
            raise
        ended = (self._done.pop(name) for name in names)
        return [refused.get(place) or next(ended) for place in range(len(asks))]

    def _turn_until_done(self, names: list[str], progress: Progress | None) -> None:
        wanted = dict.fromkeys(names)
        read = written = 0
        total = len(wanted)
        while True:
            for name in [name for name in self._done if name in wanted]:
                del wanted[name]
                read += self._done[name].usage.prompt_tokens
                written += self._done[name].usage.completion_tokens
            if not wanted:
                break
            if progress is not None:
                progress.show(total - len(wanted), read, written)
            self._turn()
        if progress is not None:
            progress.finish(total, read, written)

    def _drop(self, names: list[str]) -> None:
        """Somebody interrupts: nothing of this batch goes on."""
        for name in names:
            self.abort(name)
        self._turn()
        for name in names:
            self._done.pop(name, None)

    # -- for those who drive the loop ---------------------------------------

    def enqueue(self, prompt: Prompt, params: SamplingParams | None = None) -> str:
        """Let a request wait for `step`; returns its id. RequestError if it is malformed."""
        ask = asked(prompt)
        ask = replace(ask, request_id=ask.request_id or self._name(), params=params or ask.params)
        if ask.request_id in self._done:
            raise RequestError(f"the output of {ask.request_id!r} has not been taken yet")
        sink = Collector(ask.request_id, self._done)
        self._backlog[ask.request_id] = self._frontend.begin(ask, sink)
        return ask.request_id

    def step(self) -> list[RequestOutput]:
        """One turn of the engine; returns the requests that ended."""
        self._turn()
        ended = list(self._done.values())
        self._done.clear()
        return ended

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._frontend.open)

    def abort(self, request_id: str) -> bool:
        """End a request; its output has what came so far. False if it is not here."""
        if request_id not in self._frontend.open:
            return False
        if self._backlog.pop(request_id, None) is not None:
            self._frontend.end(request_id, Finish.ABORT)
        else:
            self._engine.abort(request_id)
        return True

    def get_metrics(self) -> Report:
        return self._frontend.metrics.report(self._engine.answer(Question("gauges")))

    def explain(self, request_id: str) -> str:
        """The life of a request, in sentences."""
        return self._engine.answer(Question("explain", request_id))

    def close(self) -> None:
        self._engine.close()

    def _turn(self) -> None:
        with held_back():  # a step that is torn apart would be in the way of the next
            has_come = self._turn_once()
        if not has_come and self.unfinished:
            self._engine.rest()

    def _turn_once(self) -> bool:
        """Has anything come of it?"""
        for name in self._frontend.expire():
            if self._backlog.pop(name, None) is None:
                self._engine.abort(name)
            else:
                self._frontend.let_go(name)
        self._feed()
        delivery = self._engine.turn()
        if delivery is None:
            return False
        for one in self._frontend.deliver(delivery):
            self._engine.abort(one.request_id, one.child)
        return True

    def _feed(self) -> None:
        """Submit what the engine has room for."""
        for name in list(islice(self._backlog, max(self._engine.room, 0))):
            try:
                self._engine.submit(self._backlog.pop(name))
            except EngineFailed as error:
                self._frontend.forget(name, error)

    def _name(self) -> str:
        while True:
            self._names += 1
            name = str(self._names - 1)
            if name not in self._done and name not in self._frontend.open:
                return name


def several(prompts: Any) -> list[Any]:
    """A text, an Ask, a dict or a list of numbers is one prompt; all else is a list of them."""
    if isinstance(prompts, str | bytes | Ask | Mapping) or not isinstance(prompts, Iterable):
        return [prompts]
    found = list(cast("Iterable[Any]", prompts))
    return [found] if found and isinstance(found[0], Integral) else found


def asked(prompt: Any) -> Ask:
    """What is no prompt is refused, and not taken for something that it may not be."""
    match prompt:
        case Ask():
            return prompt
        case str():
            return Ask(prompt=prompt)
        case {"prompt": str(text)} if len(prompt) == 1:
            return Ask(prompt=text)
        case {"prompt_token_ids": ids} if len(prompt) == 1:
            return asked(ids)
        case _ if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            ids: list[Any] = [None]
        case _:
            ids = list(cast("Iterable[Any]", prompt))
    if not all(isinstance(one, Integral) for one in ids) or bool in map(type, ids):
        raise RequestError(f"{prompt!r:.80} is no prompt: that is a text, token ids, or an Ask")
    return Ask(prompt_token_ids=[int(one) for one in ids])


def conversations(messages: Any) -> list[Sequence[Message]]:
    """One, or a list of them."""
    given: list[Any] = [messages] if isinstance(messages, str | Mapping) else list(messages)
    is_one = isinstance(messages, list | tuple) and given and isinstance(given[0], Mapping)
    found: list[Any] = [given] if is_one else given
    for one in found:
        if isinstance(one, str | Mapping) or not all(isinstance(each, Mapping) for each in one):
            raise RequestError(f"{one!r:.80} is no conversation: that is a list of messages")
    return found


def with_params(asks: list[Ask], params: Params | None) -> list[Ask]:
    """Each with its own params, or all with the same."""
    if params is None:
        return asks
    if isinstance(params, SamplingParams):
        return [replace(ask, params=params) for ask in asks]
    given: Any = params
    if isinstance(given, Mapping) or not all(isinstance(one, SamplingParams) for one in given):
        raise RequestError(f"params are {params!r:.80}; they are SamplingParams, or a list of them")
    if len(params) != len(asks):
        raise RequestError(f"there are {len(asks)} prompts and {len(params)} params")
    return [replace(ask, params=one) for ask, one in zip(asks, params, strict=True)]
