"""An engine for an event loop: streams of text, while the step loop runs elsewhere."""

from asyncio import (
    AbstractEventLoop,
    Event,
    gather,
    get_running_loop,
    sleep,
    to_thread,
    wrap_future,
)
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Literal, Self, Unpack

from paceline.core.errors import QueueFull
from paceline.core.request import Finish
from paceline.engine.api import GenerationRequest, Message, Report, SamplingParams, TokenizedPrompt
from paceline.engine.arguments import (
    AdapterControl,
    ModelControl,
    SamplingFields,
    TemplateFields,
    split,
)
from paceline.engine.components import EngineComponents
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.prompt_reader import PromptReader
from paceline.engine.frontend.stream import DeltaBuffer, DeltaStream
from paceline.engine.live.feed import LiveControl
from paceline.engine.loop.figures import EngineFigures
from paceline.engine.loop.messages import Capacity, Delivery, EngineFailed, Question, Verb
from paceline.engine.loop.ports import Core
from paceline.engine.prompts import Prompt, only, only_conversation, with_params
from paceline.engine.sampling_rules import SamplingRules
from paceline.engine.transport.thread import ThreadCore
from paceline.text.tokenizer import Tokenizer

TICK_S = 0.001  # added to timeouts, because the clock of an event loop may be coarser
SETTLE_S = 0.01  # between two looks at running requests


class StreamingEngine:
    """A model for an event loop; the end of an `async with` block shuts it down.

    Outside an event loop, `with` and `close` do the same.

    The step loop starts with the first call from the event loop, and the engine belongs to that
    loop. The core's thread only appends deliveries to `_outbox` and wakes the loop once, so it
    never waits for the front end. `api.AsyncEngine` is the protocol that the server uses.
    """

    def __init__(self, core: Core, frontend: Frontend) -> None:
        self._core, self._frontend = core, frontend
        self._loop: AbstractEventLoop | None = None
        self._outbox: deque[Delivery] = deque()
        self._pump_due, self._lock = False, Lock()
        self._reader = PromptReader(frontend)
        self._quiet = Event()  # set while no request is open
        self._gone = Event()
        self._end = ""  # why the core stopped for good
        self.adapters, self.live = AdapterControl(self._ask), LiveControl(self._ask)
        self.upkeep = ModelControl(self._ask)
        capacity = self._capacity = core.ready()
        frontend.max_model_len = capacity.max_model_len
        frontend.max_num_seqs = capacity.max_num_seqs
        self._figures = EngineFigures(self._ask, capacity)

    @classmethod
    def of(cls, components: EngineComponents) -> "StreamingEngine":
        """An engine whose step loop runs on a thread of this process."""
        engine = components.engine()
        return cls(ThreadCore(engine), components.frontend(engine))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.shutdown()

    @property
    def max_model_len(self) -> int:
        """Most tokens of a sequence, prompt and output together."""
        return self._frontend.max_model_len

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def rules(self) -> SamplingRules:
        """Sampling defaults of the model, and limits."""
        return self._frontend.rules

    # -- requests -----------------------------------------------------------

    async def tokenized(
        self, generation: GenerationRequest, images: Sequence[Any] | None = None
    ) -> TokenizedPrompt:
        """Tokenize a prompt; all but short ones are read on a thread, several at a time. `images`
        are read instead of those of the prompt, one for each."""
        return await self._reader.read(generation, images)

    def check_room(self, requests: int) -> None:
        """Raise QueueFull if the engine would certainly refuse one of so many new requests."""
        running, queued = self._frontend.max_num_seqs, self._capacity.max_num_queued_reqs
        opened = self._open_in_core() + self._reader.waiting
        if opened + requests > (running + queued) * self._capacity.engines:
            each = f" of {self._capacity.engines} engines" if self._capacity.engines > 1 else ""
            raise QueueFull(
                f"{opened} requests are open; {requests} more would exceed "
                f"max_num_seqs ({running}) and max_num_queued_reqs ({queued}){each}"
            )

    def _open_in_core(self) -> int:
        return len(self._frontend.open)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str = "",
        *,
        priority: int | None = None,
        parked: str = "",
        **fields: Unpack[SamplingFields],
    ) -> DeltaStream:
        """Start a request and return its stream of text deltas.

        A prompt is a text, a list of token ids, a list of messages, a dict such as
        `{"prompt": text}` or `{"prompt_token_ids": ids}`, or a `GenerationRequest` with settings
        of its own. Single fields of `sampling_params` can be given by name.
        With `parked`, a reason, the request waits for `wake` before it can run.

        Raises RequestError or QueueFull if the request is refused, and EngineFailed if the engine
        has stopped. A stream that is closed or dropped before its end aborts its request.

        ```py
        async with AsyncLLM("smollm2") as llm:
            async for delta in llm.generate("Once upon a time", max_tokens=40):
                print(delta.text, end="", flush=True)
            output = await llm.generate("The capital of France is").whole()
            print(output.outputs[0].text)
        ```
        """
        self._attach()
        (generation,) = with_params([only(prompt)], sampling_params, fields, self.rules)
        if request_id:
            generation = replace(generation, request_id=request_id)
        if priority is not None:
            generation = replace(generation, priority=priority)
        return self._start(generation, parked)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str = "",
        **fields: Unpack[TemplateFields],
    ) -> DeltaStream:
        """Answer a conversation through the model's chat template; returns a stream.

        `variables` (vLLM's `chat_template_kwargs`) are passed to the template, such as
        `{"enable_thinking": False}` for Qwen3, and so are `tools` and `add_generation_prompt`.
        `chat_template` is a template to use instead of the model's. The other arguments are those
        of `generate`.

        ```py
        async for delta in llm.chat([{"role": "user", "content": "Why is the sky blue?"}]):
            print(delta.text, end="", flush=True)
        ```
        """
        template, rest = split(fields)
        conversation = only_conversation(messages)
        generation = GenerationRequest(messages=conversation, request_id=request_id, **template)
        return self.generate(generation, sampling_params, **rest)

    def _start(self, generation: GenerationRequest, parked: str) -> DeltaStream:
        buffer = DeltaBuffer()
        request = self._frontend.begin(generation, buffer, deferred=True)
        try:
            self._core.submit(request, parked)
        except BaseException:
            self._frontend.drop(request.id)
            raise
        self._quiet.clear()
        if generation.timeout is not None:
            get_running_loop().call_later(generation.timeout + TICK_S, self._expire)
        buffer.on_read = partial(self._frontend.listen, request.id)
        return DeltaStream(request.id, request.prompt, buffer, self._core.abort)

    async def abort(self, request_id: str | Iterable[str]) -> bool:
        """End a request, or several, with the finish reason "abort". False if none is open."""
        names = [request_id] if isinstance(request_id, str) else request_id
        found = [name for name in names if name in self._frontend.open]
        for name in found:
            self._core.abort(name)
        return bool(found)

    def park(self, request_id: str, reason: str) -> None:
        """Set a waiting request aside until `wake`, from any thread.

        It keeps its place in the queue and its timeouts. One that runs or has ended is left alone.
        """
        self._core.park(request_id, reason)

    def wake(self, request_id: str) -> None:
        """Let a parked request wait again, from any thread, once `generate` has returned."""
        self._core.wake(request_id)

    # -- state --------------------------------------------------------------

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any: those that the model recommends."""
        return self._frontend.rules.params()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with `encode(text)` and `decode(ids)`."""
        return self._frontend.tokenizer

    async def explain(self, request_id: str) -> str:
        """Describe what a request waited for and what happened to it.

        Raises RequestError for an id that is not remembered: the engine remembers open requests
        and the last `journal_requests` finished ones.
        """
        return await self._ask("explain", request_id)

    async def snapshot(self) -> dict[str, Any]:
        """The scheduler's whole state as plain data."""
        return await self._ask("snapshot")

    async def stats(self, engine: int = 0) -> Report:
        """All metrics of an engine; the latest known figures if its core does not answer."""
        return self._frontend.engines[engine].report(await self._figures.of(engine))

    async def reports(self) -> Sequence[Report]:
        """All metrics of each engine."""
        return await gather(*map(self.stats, range(self._capacity.engines)))

    async def pause(self, mode: Literal["new", "all"] = "new") -> None:
        """Stop admitting requests ("new"), or stop planning steps as well ("all")."""
        await self._ask("pause", mode)

    async def paused(self) -> str:
        """What is paused: "new", "all", or nothing ("")."""
        return await self._ask("paused")

    async def settled(self) -> None:
        """Wait until no request runs, or until `resume`."""
        while await self.paused():
            if not any(one.gauges["num_requests_running"] for one in await self.reports()):
                return
            await sleep(SETTLE_S)

    async def resume(self) -> None:
        """Undo `pause`."""
        await self._ask("resume")

    async def drain(self) -> None:
        """Refuse new requests, and return when the open ones have finished."""
        await self._ask("drain")
        while self._frontend.open:
            await self._quiet.wait()

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. False if running requests hold blocks of them.

        With `reset_running_requests`, those requests are preempted first and computed again later.
        """
        return await self._ask("reset_prefix_cache", "running" if reset_running_requests else "")

    def healthy(self) -> str | None:
        """None, or why the engine is not healthy."""
        return self._core.healthy()

    def troubles(self) -> Sequence[str]:
        """Why each engine is not healthy; empty for one that is."""
        return self._core.troubles()

    @property
    def last_failure_s(self) -> float | None:
        """Seconds since a request last ended with an error; None if none has."""
        return self._frontend.last_failure_s

    async def gone(self) -> str:
        """Wait until the core has stopped for good, and return the reason."""
        self._attach()
        await self._gone.wait()
        return self._end

    async def shutdown(self) -> None:
        """Stop the step loop and release the model, without blocking the event loop.

        Open requests end with the finish reason "abort". Shutting down twice is allowed.
        """
        await to_thread(self._core.close)
        self._end_open()

    def close(self) -> None:
        """Stop the step loop and release the model, as `shutdown` does, and wait for it.

        Call it in the thread of the event loop, or after the loop has ended.
        """
        self._core.close()
        self._end_open()

    def _end_open(self) -> None:
        self._pump_all()
        self._frontend.end_all(Finish.ABORT)
        self._quiet.set()

    async def _ask(self, verb: Verb, argument: str = "") -> Any:
        self._attach()
        return await wrap_future(self._core.ask(Question(verb, argument)))

    # -- from the core's thread ---------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        with self._lock:
            self._outbox.append(delivery)
            rings, self._pump_due = not self._pump_due, True
        if rings:
            self._call(self._pump)

    def died(self, reason: str, for_good: bool) -> None:
        self._call(self._core_died, reason, for_good)

    def health_changed(self) -> None:
        """Nothing: `healthy` asks the core each time."""

    def _call(self, function: Callable[..., None], *arguments: str | bool) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- on the event loop --------------------------------------------------

    def _attach(self) -> None:
        loop = get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._core.start(self)
        elif self._loop is not loop:
            raise EngineFailed(
                "the engine belongs to another event loop; create one per event loop"
            )

    def _pump(self) -> None:
        """Pass one delivery to its streams; the others wait for the next turn of the loop."""
        self._deliver_next()
        with self._lock:
            self._pump_due = bool(self._outbox)
        if self._pump_due:
            self._call(self._pump)

    def _pump_all(self) -> None:
        while self._outbox:
            self._deliver_next()

    def _deliver_next(self) -> None:
        if self._outbox:
            for one in self._frontend.deliver(self._outbox.popleft()):
                self._core.abort(one.request_id, one.child)
        if not self._frontend.open:
            self._quiet.set()

    def _expire(self) -> None:
        self._pump_all()  # tokens that arrived in time count
        for name in self._frontend.expire():
            self._core.abort(name)
        if not self._frontend.open:
            self._quiet.set()

    def _core_died(self, reason: str, for_good: bool) -> None:
        """End every open request, also one that the next core has already received."""
        self._pump_all()
        self._frontend.metrics.crashed()
        for name in self._frontend.end_all(Finish.ERROR, reason):
            self._core.abort(name)
        self._quiet.set()
        if for_good:
            self._end = reason
            self._gone.set()
