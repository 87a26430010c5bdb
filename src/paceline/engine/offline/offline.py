"""An engine for a script: prompts in, finished outputs back, on the caller's thread."""

import gc
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Self, Unpack

from paceline.core.adapter import LoRARequest
from paceline.core.errors import RequestError
from paceline.core.request import Finish, Request
from paceline.engine.api import GenerationRequest, Message, Report, RequestOutput, SamplingParams
from paceline.engine.arguments import (
    ChatFields,
    GenerateFields,
    LoRARequests,
    SamplingFields,
    split,
)
from paceline.engine.components import Factory
from paceline.engine.frontend.prompt_reader import tokenized
from paceline.engine.long_work import interrupts_deferred
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import EngineFailed, Question
from paceline.engine.offline.batch import OutputCollector, PromptBatch, adapted, load_now, refusal
from paceline.engine.offline.progress import Progress
from paceline.engine.prompts import (
    Params,
    Prompt,
    as_generation,
    conversations,
    only,
    several,
    with_params,
    with_priorities,
)
from paceline.engine.sampling_rules import MODEL_DEFAULTS
from paceline.engine.vllm_forms import BeamSearchOutput, BeamSearchParams, LLMEngine, with_token_ids
from paceline.text.tokenizer import Tokenizer


class OfflineEngine:
    """A model to call from a script, on the thread of the caller.

    Outputs have the order of the prompts. A prompt that cannot run does not stop the others: its
    output has the finish reason "error", and `error` says why. Requests from `enqueue` run beside
    those of `generate` and `chat`.

    `close`, or the end of a `with` block, releases the model. Every call after that raises
    EngineFailed.
    """

    def __init__(self, model: str, build: Factory, **settings: Any) -> None:
        self.model = model
        components = build(model, **settings)
        self._open_engine: Engine | None = components.engine()  # None: after `close`
        self._frontend = components.frontend(self._open_engine)
        self._frontend.max_model_len = self._open_engine.capacity.max_model_len
        self._backlog: dict[str, Request] = {}  # not submitted yet: the engine's queue is full
        self._done: dict[str, RequestOutput] = {}  # finished, and not returned yet
        self._names = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop unfinished requests and release the model's weights and KV memory.

        Closing twice is allowed.
        """
        if self._open_engine is None:
            return
        self._open_engine.close()
        self._open_engine = None
        self._frontend.end_all(Finish.ABORT)
        self._backlog.clear()
        self._done.clear()
        gc.collect()  # the captured graphs of a runner refer back to it

    @property
    def _engine(self) -> Engine:
        self._require_open()
        assert self._open_engine is not None
        return self._open_engine

    def _require_open(self) -> None:
        if self._open_engine is None:
            raise EngineFailed(f"the LLM of {self.model!r} is closed; create another one")

    def _require_awake(self) -> None:
        if (refusal := self._engine.upkeep.refusal) is not None:
            raise refusal

    # -- many at once -------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt] | None = None,
        sampling_params: Params | None = None,
        *,
        progress: bool = True,
        raise_on_error: bool = False,
        **fields: Unpack[GenerateFields],
    ) -> list[RequestOutput]:
        """Continue each prompt, and return when all of them have finished.

        A prompt is a text, a list of token ids, a list of messages, a dict such as
        `{"prompt": text}` or `{"prompt_token_ids": ids}`, or a `GenerationRequest` with settings
        of its own; `prompt_token_ids` gives token ids instead. `sampling_params` is one for all
        prompts, or a list with one for each. Single fields of it can be given by name. `progress`
        draws a bar on stderr; vLLM's `use_tqdm` is the same.

        A prompt that fails does not stop the others: its output has an `error`, and one warning
        says how many failed. With `raise_on_error`, the first failure drops the whole batch and
        raises RequestFailed.

        ```py
        outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=20))
        print(outputs[0].outputs[0].text)
        llm.generate("The capital of France is", max_tokens=8, temperature=0)
        ```
        """
        shown = fields.pop("use_tqdm", progress)
        lora = fields.pop("lora_request", None)
        given = with_token_ids(prompts, fields.pop("prompt_token_ids", None))
        is_one = isinstance(sampling_params, SamplingParams)
        params = sampling_params if is_one else MODEL_DEFAULTS
        asked = [as_generation(prompt, params) for prompt in several(given)]
        asked = with_priorities(asked, fields.pop("priority", None))
        generations = adapted(asked, lora, self.load_adapter)
        rules = self._frontend.rules
        asked = with_params(generations, sampling_params, fields, rules)
        return self._run(asked, shown, raise_on_error)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | None = None,
        *,
        progress: bool = True,
        raise_on_error: bool = False,
        **fields: Unpack[ChatFields],
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        `variables` (vLLM's `chat_template_kwargs`) are passed to the template, such as
        `{"enable_thinking": False}` for Qwen3, and so are `tools` and `add_generation_prompt`.
        `chat_template` is a template to use instead of the model's. The other arguments are those
        of `generate`.

        ```py
        (output,) = llm.chat([{"role": "user", "content": "Why is the sky blue?"}])
        print(output.outputs[0].text)
        ```
        """
        shown, lora = fields.pop("use_tqdm", progress), fields.pop("lora_request", None)
        template, rest = split(fields)
        asked = [GenerationRequest(messages=one, **template) for one in conversations(messages)]
        generations = adapted(asked, lora, self.load_adapter)
        rules = self._frontend.rules
        asked = with_params(generations, sampling_params, rest, rules)
        return self._run(asked, shown, raise_on_error)

    def beam_search(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: LoRARequests = None,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """Search with beams, as vLLM's method of this name does: each beam has its prompt.

        `generate` with `SamplingParams(beam_width=4, n=2)` returns outputs without their prompts.
        """
        asked = [as_generation(prompt) for prompt in several(prompts)]
        generations = adapted(asked, lora_request, self.load_adapter)
        outputs = self._run(
            with_params(generations, params.sampling()), use_tqdm, raise_on_error=False
        )
        return [BeamSearchOutput.of(one, params, self.get_tokenizer()) for one in outputs]

    def _run(
        self, generations: list[GenerationRequest], progress: bool, raise_on_error: bool
    ) -> list[RequestOutput]:
        self._require_awake()
        batch = PromptBatch(len(generations), raise_on_error)
        try:
            self._enqueue_all(batch, generations)
            with Progress(len(generations)) if progress and generations else nullcontext() as shown:
                self._turn_until_done(batch, shown)
        except BaseException:
            self._drop(batch.open)
            raise
        return batch.outputs()

    def _enqueue_all(self, batch: PromptBatch, generations: list[GenerationRequest]) -> None:
        with interrupts_deferred() as handle_interrupt:  # so that the batch lists every request
            for place, generation in enumerate(tokenized(self._frontend, generations)):
                name = generation.request_id or self._name()
                try:
                    self._enqueue(generation, name)
                except RequestError as error:
                    batch.refused(place, refusal(generation, name, error))
                else:
                    batch.opened(place, name)
                handle_interrupt()

    def _turn_until_done(self, batch: PromptBatch, progress: Progress | None) -> None:
        with interrupts_deferred() as handle_interrupt:  # to the end of a step
            while not batch.ended:
                if progress is not None:
                    progress.show(batch.counts)
                self._turn()
                handle_interrupt()
                batch.take(self._done)
        if progress is not None:
            progress.finish(batch.counts)

    def _drop(self, names: list[str]) -> None:
        """Abort the whole batch after an interrupt or an error."""
        for name in names:
            self.abort(name)
        self._turn()
        for name in names:
            self._done.pop(name, None)

    # -- step by step -------------------------------------------------------

    def enqueue(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **fields: Unpack[SamplingFields],
    ) -> str:
        """Add a request without waiting for it, and return its id; `step` runs it.

        Raises RequestError if the request is malformed.

        ```py
        llm.enqueue("The capital of France is")
        while llm.unfinished:
            for output in llm.step():
                print(output.request_id, output.outputs[0].text)
        ```
        """
        self._require_awake()
        (generation,) = with_params([only(prompt)], sampling_params, fields, self._frontend.rules)
        name = generation.request_id or self._name()
        self._enqueue(generation, name)
        return name

    def _enqueue(self, generation: GenerationRequest, name: str) -> None:
        """Add a request under this id."""
        if name in self._done:
            raise RequestError(
                f"the output of {name!r} has not been returned yet; "
                "call step, or use another request_id"
            )
        sink = OutputCollector(generation, name, self._done)
        self._backlog[name] = self._frontend.begin(generation, sink, deferred=True, name=name)

    def step(self) -> list[RequestOutput]:
        """Run one step of the engine, and return the requests that finished in it."""
        with interrupts_deferred():
            self._turn()
        ended = list(self._done.values())
        self._done.clear()
        return ended

    @property
    def unfinished(self) -> int:
        """Number of requests that have not finished."""
        return len(self._frontend.open)

    def abort(self, request_id: str | Iterable[str]) -> bool:
        """End a request, or several; the output has the tokens so far. False if none is open."""
        names = [request_id] if isinstance(request_id, str) else request_id
        found = [name for name in names if name in self._frontend.open]
        for name in found:
            if self._backlog.pop(name, None) is not None:
                self._frontend.end(name, Finish.ABORT)
            else:
                self._engine.abort(name)
        return bool(found)

    # -- adapters -----------------------------------------------------------

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Read an adapter, unless it is loaded. RequestError if its files are wrong."""
        load_now(self._engine, adapter, self._turn)  # while other requests run

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; open requests that use it finish."""
        self._engine.answer(Question("unload_adapter", name))

    # -- state --------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Most tokens of a sequence, prompt and output together."""
        return self._frontend.max_model_len

    @property
    def llm_engine(self) -> LLMEngine:
        """The engine under the names that vLLM's has, for scripts that step it."""
        return LLMEngine(self)

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any: those that the model recommends."""
        return self._frontend.rules.params()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with `encode(text)` and `decode(ids)`."""
        return self._frontend.tokenizer

    def get_metrics(self) -> Report:
        """Counters, gauges and histograms, under vLLM's names."""
        return self._frontend.metrics.report(self._engine.answer(Question("gauges")))

    def explain(self, request_id: str) -> str:
        """Describe what a request waited for and what happened to it.

        Raises RequestError for an id that is not remembered: the engine remembers open requests
        and the last `journal_requests` finished ones.
        """
        return self._engine.answer(Question("explain", request_id))

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. False if running requests hold blocks of them.

        With `reset_running_requests`, those requests are preempted first and computed again later.
        """
        running = "running" if reset_running_requests else ""
        return self._engine.answer(Question("reset_prefix_cache", running))

    def _turn(self) -> None:
        """Run one turn of the engine; if that delivers nothing, wait a little."""
        for name in self._frontend.expire():
            if self._backlog.pop(name, None) is None:
                self._engine.abort(name)
            else:
                self._frontend.release_id(name)
        self._feed()
        delivery = self._engine.turn()
        if delivery is not None:
            for one in self._frontend.deliver(delivery):
                self._engine.abort(one.request_id, one.child)
        elif self.unfinished:
            self._engine.rest()

    def _feed(self) -> None:
        """Submit as many requests as the engine has room for."""
        if not self._backlog:
            return
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
