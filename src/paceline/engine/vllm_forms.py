"""What scripts for vLLM pass to `LLM` and get from it, where paceline has another form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict

from paceline.core.errors import RequestError
from paceline.engine.api import RequestOutput
from paceline.engine.params import SamplingParams
from paceline.engine.prompts import Prompt, as_generation
from paceline.text.tokenizer import Tokenizer


class TextPrompt(TypedDict, total=False):
    """A prompt as text."""

    prompt: str
    multi_modal_data: Mapping[str, Any]
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; `prompt` is the text that they were made from."""

    prompt_token_ids: Sequence[int]
    prompt: str
    multi_modal_data: Mapping[str, Any]
    cache_salt: str


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """What an output must follow; one of the first six."""

    json: Any = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How an embedding is returned. None: as the model's files say."""

    dimensions: int | None = None
    normalize: bool | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """A search with beams; see `SamplingParams`."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            use_beam_search=True,
            beam_width=self.beam_width,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One beam, with its prompt."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The beams of a prompt, the best first."""

    sequences: list[BeamSearchSequence]
    error: str = ""

    @classmethod
    def of(
        cls, output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer
    ) -> "BeamSearchOutput":
        prompt = list(output.prompt_token_ids)
        text = output.prompt
        if text is None:
            text = tokenizer.decode(prompt)
        found = [
            BeamSearchSequence(
                [*prompt, *one.token_ids],
                text + one.text,
                one.score * max(len(one.token_ids), 1) ** params.length_penalty,
                one.finish_reason,
                one.stop_reason,
            )
            for one in output.outputs
            if one.score is not None
        ]
        return cls(found, output.error)


class StepEngine(Protocol):
    """What `LLMEngine` needs of an engine for scripts."""

    model: str

    @property
    def max_model_len(self) -> int: ...

    @property
    def unfinished(self) -> int: ...

    def enqueue(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> str: ...

    def step(self) -> list[RequestOutput]: ...

    def abort(self, request_id: str | Iterable[str]) -> bool: ...

    def get_tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What scripts read of `llm.llm_engine.model_config`."""

    model: str
    max_model_len: int
    vocab_size: int

    def get_vocab_size(self) -> int:
        return self.vocab_size


class LLMEngine:
    """The engine of an `LLM`, step by step, under the names that vLLM's has.

    `step` returns the requests that finished in it, and not what others have so far.
    """

    def __init__(self, llm: StepEngine) -> None:
        self._llm = llm

    @property
    def model_config(self) -> ModelFacts:
        llm = self._llm
        return ModelFacts(llm.model, llm.max_model_len, llm.get_tokenizer().vocab_size)

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams) -> str:
        """Add a request; `step` runs it."""
        return self._llm.enqueue(named(prompt, request_id), params)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        self._llm.abort(request_ids)

    def step(self) -> list[RequestOutput]:
        return self._llm.step()

    def has_unfinished_requests(self) -> bool:
        return bool(self._llm.unfinished)

    def get_num_unfinished_requests(self) -> int:
        return self._llm.unfinished

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.get_tokenizer()


def named(prompt: Prompt, request_id: str) -> Prompt:
    return replace(as_generation(prompt), request_id=request_id)


def with_token_ids(prompts: Any, token_ids: Any) -> Any:
    """The prompts of a call that may give token ids by a keyword of their own."""
    if token_ids is None:
        if prompts is None:
            raise RequestError("there are no prompts; give prompts, or prompt_token_ids")
        return prompts
    if prompts is not None:
        raise RequestError("prompts and prompt_token_ids are both given; give one of them")
    return token_ids
