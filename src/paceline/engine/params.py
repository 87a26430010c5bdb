"""Sampling parameters of a request, under the names that vLLM and OpenAI use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, cast

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError, nearest
from paceline.core.request import MOST_PENALTY
from paceline.core.sampling import (
    LARGEST_ID,
    LogitsProcessor,
    Sampling,
    ServiceLevel,
    alternatives,
    token_ids,
    whole,
)
from paceline.structured.request_fields import KINDS, OPTIONS, from_structured_outputs

MOST_SEQUENCES = 4096
MOST_CHARACTERS = 4096  # of all stop strings together
MOST_BANNED = 65536  # characters of all banned words together
SEED_BOUNDS = 2**63
DEFAULT_TOKENS = 16
PLAIN = Sampling()
CHOSEN = [one.name for one in fields(Sampling)]
NONE_IS_EMPTY = ("logit_bias", "logprob_token_ids", "logits_processors")
EDITS = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "bad_token_ids", "allowed_token_ids"),
    *("top_p", "top_k", "min_p", "logits_processors"),
)
BEAM_ONLY: dict[str, Any] = {"length_penalty": 1.0, "early_stopping": False}
FLAGS = (
    *("use_beam_search", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("detokenize", "spaces_between_special_tokens"),
)


def texts(name: str, given: Any, most: int = MOST_CHARACTERS) -> tuple[str, ...]:
    """One string or several: none is empty, and together they are not too long."""
    found: Any = (given,) if isinstance(given, str) else given
    if found is None:
        return ()
    if not isinstance(found, Iterable):
        raise RequestError(f"{name} is {given!r}; it must be a string or a list of strings")
    strings = tuple(cast("Iterable[Any]", found))
    for string in strings:
        if not isinstance(string, str) or not string:
            raise RequestError(f"{name} has {string!r}; it must have non-empty strings only")
    if sum(map(len, strings)) > most:
        raise RequestError(f"{name} has more than {most} characters in total")
    return cast("tuple[str, ...]", strings)


def constraint_from(given: Any) -> Constraint | None:
    """A constraint as it is, or from vLLM's form: a mapping, or an object with its fields."""
    if isinstance(given, Constraint):
        return given
    if given is None or isinstance(given, Mapping):
        return from_structured_outputs(cast("object", given))
    found = {name: getattr(given, name) for name in KINDS if hasattr(given, name)}
    if not found:
        raise RequestError(
            f"structured_outputs is {given!r}; it must be an object with one of {', '.join(KINDS)}"
        )
    found |= {name: getattr(given, name) for name in OPTIONS if hasattr(given, name)}
    return from_structured_outputs(found)


# Arguments that vLLM takes, and what to do instead.
UNSUPPORTED = {
    "extra_args": "there are no plug-ins that read them",
    "flat_logprobs": "log-probabilities are read as a dict for each token",
    "repetition_detection": "see repetition_penalty",
    "skip_reading_prefix_cache": "give a GenerationRequest with a cache_salt of its own",
    "stream_interval": "AsyncLLM joins the tokens that a slow reader has not read",
    "chat_template_content_format": "templates get the content of a message as text",
    "data_parallel_rank": "there is one engine",
    "lora_request": "load the adapter, and give a GenerationRequest with its name as adapter",
    "mm_processor_kwargs": "only text is supported",
    "output_kind": "LLM returns whole outputs, and AsyncLLM streams the new text",
    "priority": "give a GenerationRequest with a priority",
    "request_id": "give a GenerationRequest with a request_id",
    "tokenization_kwargs": "give token ids as the prompt",
    "trace_headers": "traces are not exported",
}


def unknown_argument(name: str, known: Iterable[str]) -> RequestError:
    """The error of an argument that there is not, with the nearest one or what to do instead."""
    if name in UNSUPPORTED:
        return RequestError(f"{name} is not supported: {UNSUPPORTED[name]}")
    return RequestError(f"unknown argument {name!r}{nearest(name, known)}")


class Validated:
    """Refuses arguments that are no fields, and keeps the `Sampling` that the checks of
    `SamplingParams` made, which is no field of it."""

    __slots__ = ("_sampling",)
    _sampling: Sampling

    def __new__(cls, *_positional: Any, **given: Any) -> Self:
        known = cast("Any", cls).__match_args__
        for name in given:
            if name not in known:
                raise unknown_argument(name, known)
        return super().__new__(cls)


@dataclass(frozen=True, slots=True)
class SamplingParams(Validated):
    """How tokens are chosen and when an output ends.

    Values out of range and combinations that exclude each other raise RequestError.

    ```py
    SamplingParams(temperature=0, max_tokens=100)  # greedy
    SamplingParams(temperature=0.8, top_p=0.95, seed=7, stop=["\\n\\n"])
    SamplingParams(n=4, logprobs=3)  # four samples, with the three likeliest tokens each
    SamplingParams(use_beam_search=True, beam_width=4, n=2)
    ```

    Attributes:
        n: Sequences to return.
        best_of: Sequences to sample, of which the n likeliest are returned. None: n.
        use_beam_search: Search with beams instead of sampling.
        beam_width: Number of beams. 0: `best_of`, or else n, if `use_beam_search` is set.
        length_penalty: Beam search: scores are divided by the length to this power.
        early_stopping: Beam search: stop at `beam_width` finished beams (True), when a better one
            is unlikely (False), or only when none is possible ("never").
        temperature: Divides the logits. 0: always the likeliest token.
        top_p: Sample from the likeliest tokens that together have this probability.
        top_k: Sample from the k likeliest tokens. 0 or -1: from all.
        min_p: Sample from tokens with at least this share of the highest probability.
        presence_penalty: Subtracted from the logits of tokens that occur in the output.
        frequency_penalty: The same, once for each occurrence.
        repetition_penalty: Divides the logits of tokens that occur in prompt or output.
        seed: Seed of the samples. None: derived from the request id. Requests of a script are
            numbered, so a script repeats its samples.
        max_tokens: Most tokens to generate. None: up to `max_model_len`. 0: the prompt is computed
            and nothing generated, for its log-probabilities.
        min_tokens: No end token and no stop string ends the output before this many tokens.
        stop: Strings that end the output: one, or a list.
        stop_token_ids: Tokens that end the output.
        ignore_eos: Continue after the model's own end token.
        logprobs: Number of alternatives reported with the log-probability of each output token.
            None: no log-probabilities. -1: all tokens, if `max_logprobs` allows it.
        prompt_logprobs: The same for the tokens of the prompt, which is computed without the
            prefix cache.
        logprob_token_ids: Tokens whose log-probabilities are reported with each output token,
            beside the token itself, instead of those of the likeliest ones.
        logit_bias: Added to the logits of single tokens, by token id.
        include_stop_str_in_output: Keep the stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        bad_token_ids: Tokens that are never generated.
        allowed_token_ids: The only tokens that may be generated. None: all.
        detokenize: Make text of the tokens. Without it the text is empty.
        spaces_between_special_tokens: True; the text has the bytes of the tokens.
        truncate_prompt_tokens: Most tokens of the prompt that are kept, the last ones. -1: as many
            as leave room for `max_tokens`. None: a prompt that is too long is refused.
        logits_processors: Functions of the tokens generated so far and the logits, a tensor with
            one number for each token; each returns the logits to use instead. On a CPU only.
        slo: Targets of this request in milliseconds: from its arrival to the first token, and
            between two tokens, such as {"ttft_ms": 500, "itl_ms": 40}. None: those of its tenant
            or of the engine.
        guided_decoding: Another name of `structured_outputs`.
        bad_words: Texts that are never generated, as far as their usual tokens go: the last token
            of a text is forbidden behind its others.
        structured_outputs: What the output must follow: a `Constraint`, or vLLM's form, such as
            `{"json": schema}`, with one of json, regex, choice, grammar and structural_tag.
    """

    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = DEFAULT_TOKENS
    min_tokens: int = 0
    stop: str | Iterable[str] = ()
    stop_token_ids: Iterable[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    bad_token_ids: Iterable[int] = ()
    allowed_token_ids: Iterable[int] | None = None
    structured_outputs: Constraint | Mapping[str, Any] | None = None
    logprob_token_ids: Iterable[int] | None = None
    bad_words: str | Iterable[str] = ()
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logits_processors: Iterable[LogitsProcessor] | None = None
    guided_decoding: Any = None
    slo: ServiceLevel | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        fix = object.__setattr__
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        self._check_text()
        fix(self, "stop", texts("stop", self.stop))
        if self.guided_decoding is not None:
            if self.structured_outputs is not None:
                raise RequestError("guided_decoding is structured_outputs; give one of them")
            fix(self, "structured_outputs", self.guided_decoding)
            fix(self, "guided_decoding", None)
        fix(self, "bad_words", texts("bad_words", self.bad_words, MOST_BANNED))
        fix(self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        if self.structured_outputs is not None:
            fix(self, "structured_outputs", constraint_from(self.structured_outputs))
        if self.logprob_token_ids is not None:
            self._fix_scored()
        fix(self, "slo", ServiceLevel.of(self.slo))
        self._check_numbers()
        self._check_group()
        chosen = self._chosen()
        self._check_search(chosen)
        fix(self, "_sampling", chosen)
        for name in ("logit_bias", "bad_token_ids", "allowed_token_ids", "logits_processors"):
            fix(self, name, getattr(chosen, name))

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """The parameters, where None stands for the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    def clone(self) -> Self:
        """The parameters themselves: they cannot be changed, so a copy is not needed."""
        return self

    def _check_text(self) -> None:
        if not self.spaces_between_special_tokens:
            raise RequestError(
                "spaces_between_special_tokens is False; the text has the bytes of the tokens: "
                "remove it"
            )
        if not self.detokenize and self.stop:
            raise RequestError("stop is for texts, which detokenize=False leaves out; remove stop")

    def _fix_scored(self) -> None:
        """The number of alternatives is that of the tokens that are named."""
        found = token_ids("logprob_token_ids", self.logprob_token_ids)
        if not found:
            raise RequestError("logprob_token_ids is empty; give at least one token id")
        object.__setattr__(self, "logprob_token_ids", found)
        object.__setattr__(self, "logprobs", len(found))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a dict: a mapping proxy cannot be pickled."""
        values: list[Any] = [getattr(self, one.name) for one in fields(self)]
        plain = [dict(v) if v is self.logit_bias else v for v in values]
        return SamplingParams, tuple(plain)

    def _check_numbers(self) -> None:
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 0, LARGEST_ID, f"must lie in 0..{LARGEST_ID}")
        most = LARGEST_ID if self.max_tokens is None else self.max_tokens
        whole("min_tokens", self.min_tokens, 0, most, f"must lie in 0..{most}")
        if self.seed is not None:
            bounds = "must fit in 64 bits"
            whole("seed", self.seed, -SEED_BOUNDS, SEED_BOUNDS - 1, bounds)
        for name in ("logprobs", "prompt_logprobs"):
            if (wanted := getattr(self, name)) is not None:
                whole(name, wanted, -1, LARGEST_ID, "must be at least 0, or -1 for all tokens")
                object.__setattr__(self, name, alternatives(wanted))

    def _check_group(self) -> None:
        whole("n", self.n, 1, MOST_SEQUENCES, f"must lie in 1..{MOST_SEQUENCES}")
        if self.best_of is not None:
            bounds = f"must lie in n..{MOST_SEQUENCES}, and n is {self.n}"
            whole("best_of", self.best_of, self.n, MOST_SEQUENCES, bounds)
        whole("beam_width", self.beam_width, 0, MOST_SEQUENCES, f"must lie in 0..{MOST_SEQUENCES}")
        if 0 < self.beams < max(self.n, 2):
            raise RequestError(
                f"beam_width is {self.beams}; it must be at least 2, and at least n ({self.n})"
            )
        if self.beam_width and self.best_of not in (None, self.beam_width):
            raise RequestError(
                f"best_of is {self.best_of} and beam_width {self.beam_width}; give one of them"
            )
        if self.early_stopping not in (True, False, "never"):
            raise RequestError(
                f'early_stopping is {self.early_stopping!r}; it must be True, False or "never"'
            )
        penalty: Any = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float):
            raise RequestError(f"length_penalty is {penalty!r}; it must be a number")
        if not -MOST_PENALTY <= penalty <= MOST_PENALTY:
            raise RequestError(f"length_penalty is {penalty}; it must lie in [-10, 10]")
        if self.logprobs is not None and self.silent:
            raise RequestError(
                "logprobs cannot be returned with best_of above n, nor with beam search; "
                "remove logprobs"
            )

    def _check_search(self, chosen: Sampling) -> None:
        """Refuse settings that change the probabilities by which beam search ranks.

        A temperature of 0 or 1 is accepted, because clients send both as defaults.
        """
        if not self.beams:
            for name, plain in BEAM_ONLY.items():
                if getattr(self, name) != plain:
                    raise RequestError(
                        f"{name} is for beam search; set use_beam_search, or remove {name}"
                    )
            return
        changed = [name for name in EDITS if getattr(chosen, name) != getattr(PLAIN, name)]
        changed += ["temperature"] * (chosen.temperature not in (0, 1))
        changed += ["min_tokens"] * (self.min_tokens > 0)
        changed += ["bad_words"] * bool(self.bad_words)
        if changed:
            raise RequestError(
                f"{changed[0]} cannot be combined with beam search; remove {changed[0]}"
            )

    @property
    def prompt_only(self) -> bool:
        """Whether only the prompt is computed and nothing is generated."""
        return self.max_tokens == 0

    @property
    def beams(self) -> int:
        """Number of beams; 0: no beam search."""
        if not (self.use_beam_search or self.beam_width):
            return 0
        return self.beam_width or self.best_of or self.n

    @property
    def silent(self) -> bool:
        """Whether tokens are reported only at the end, when the best sequences are known."""
        return self.beams > 0 or (self.best_of or self.n) > self.n

    @property
    def sampling(self) -> Sampling:
        """The part of the parameters that the runner needs."""
        return self._sampling

    @property
    def constraint(self) -> Constraint | None:
        """What the output must follow."""
        return cast("Constraint | None", self.structured_outputs)

    def without_truncation(self) -> "SamplingParams":
        """The same for a prompt that is truncated already."""
        given = self.truncate_prompt_tokens is not None
        return replace(self, truncate_prompt_tokens=None) if given else self

    def with_banned_tokens(self, encode: Callable[[str], Sequence[int]]) -> "SamplingParams":
        """The same with the tokens of `bad_words`, at the start of a word and within one. A single
        token is in `bad_token_ids`, which costs a step nothing."""
        if not self.bad_words:
            return self
        spelled = [
            tuple(encode(before + word.lstrip())) for word in self.bad_words for before in ("", " ")
        ]
        found = dict.fromkeys(filter(None, spelled))
        longer = tuple(one for one in found if len(one) > 1)
        constraint = self.constraint
        if longer:
            constraint = (constraint or Constraint.any_text()).without(longer)
        return replace(
            self,
            bad_words=(),
            bad_token_ids=(*self.bad_token_ids, *(one for (one, *rest) in found if not rest)),
            structured_outputs=constraint,
        )

    def _chosen(self) -> Sampling:
        given = {name: getattr(self, name) for name in CHOSEN}
        for name in NONE_IS_EMPTY:
            if given[name] is None:
                del given[name]
        return Sampling(**given)
