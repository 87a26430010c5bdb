"""A real scheduler and tokenizer with a model without weights behind the runner's port."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from threading import Event
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.trainers import BpeTrainer

from paceline.core.capabilities import Capabilities
from paceline.core.plan import Candidates, Plan, StepResult
from paceline.core.pooling import PromptScores
from paceline.core.request import Request
from paceline.engine.api import GenerationRequest, RequestOutput, SamplingParams, TextDelta
from paceline.engine.components import EngineComponents
from paceline.engine.sampling_rules import NO_RULES
from paceline.engine.settings import EngineSettings
from paceline.sched.scheduler import Scheduler
from paceline.testing.oracle import OracleRunner
from paceline.testing.reference import extended, likeliest, logprobs, reference, start_digest
from paceline.text.chat_template import CHATML, ChatTemplate
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary, frame

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog's owner didn't care.",
    "naïve café Straße Привет мир 你好世界 こんにちは 😀 👨‍👩‍👧‍👦 🇫🇷 ∑∫√ ½",
    "hello world hello there the the the thin thing things nothing everything",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
MAX_MODEL_LEN = 256


@cache
def tokenizer() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(Vocabulary(backend, 0, (1,), CHATML))


class Broken(RuntimeError):
    """What a device raises here."""


class OraclePort:
    """The oracle as a runner; `breaks` says in which steps it fails, and where. Rows of requests
    that are called spoiled have no numbers."""

    capabilities = Capabilities(logprobs=True, prompt_logprobs=True)

    def __init__(self, oracle: OracleRunner, breaks: Callable[[Plan, str], bool]) -> None:
        self.oracle, self.breaks = oracle, breaks
        self.results: deque[tuple[Plan, StepResult | None]] = deque()
        self.launched: list[Plan] = []
        self.deepest = 0
        self.closed = False

    def launch(self, plan: Plan) -> None:
        self.launched.append(plan)
        if self.breaks(plan, "launch"):
            self.oracle.lose(plan)
            raise Broken(f"cannot launch {plan.step}")
        if not plan.empty and self.breaks(plan, "wait"):
            self.oracle.lose(plan)
            self.results.append((plan, None))
        elif self.results and self.results[-1][1] is None:
            self.oracle.lose(plan)  # a device that failed runs nothing that builds on it
            self.results.extend([] if plan.empty else [(plan, None)])
        else:
            self.oracle.spoiled |= {name for name in plan.rows.labels if "spoiled" in name}
            result = self._scored(plan, self.oracle.run(plan))
            result = replace(result, prompt=tuple(self._prompt(plan)))
            self.results.extend([] if plan.empty else [(plan, result)])
        self.deepest = max(self.deepest, len(self.results))

    def wait(self) -> StepResult:
        plan, result = self.results.popleft()
        if result is None:
            raise Broken(f"step {plan.step} is lost")
        return result

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def _scored(self, plan: Plan, result: StepResult) -> StepResult:
        """With log-probabilities where requests ask for them."""
        tracks = [self.oracle.tracks[slot] for slot in plan.rows.slot.tolist()]
        wanted = [track.request.sampling.logprobs for track in tracks]
        if not any(one is not None for one in wanted):
            return result
        most = min(max(one or 1 for one in wanted), self.oracle.vocab)
        chosen = np.zeros(result.ids.shape, np.float32)
        shape = len(tracks), most
        found = Candidates(np.full(shape, -1, np.int32), np.zeros(shape, np.float32))
        for row, track in enumerate(tracks):
            if wanted[row] is None or not result.count[row]:
                continue
            digest = track.digests[-1]
            values = logprobs(digest, self.oracle.vocab)
            chosen[row, 0] = values[int(result.ids[row, 0])]
            named = [(id, values[id]) for id in track.request.sampling.logprob_token_ids]
            pairs = named or likeliest(digest, self.oracle.vocab, most)
            for place, (id, value) in enumerate(pairs):
                found.ids[row, place], found.logprob[row, place] = id, value
        return replace(result, logprob=chosen, candidates=found)

    def _prompt(self, plan: Plan) -> Iterator[PromptScores]:
        """Where requests ask for them; the last position of a prompt tells of the output."""
        rows = plan.rows
        for row, slot in enumerate(rows.slot.tolist()):
            track = self.oracle.tracks[slot]
            wanted, begin = track.request.sampling.prompt_logprobs, int(plan.start[row])
            tokens = track.request.prompt[begin + 1 : begin + 1 + int(rows.count[row])].tolist()
            if wanted is None or not tokens:
                continue
            digests = track.digests[begin : begin + len(tokens)]
            found = [
                prompt_score(digest, token) for digest, token in zip(digests, tokens, strict=True)
            ]
            yield PromptScores(
                request_id=rows.request_id[row],
                serial=int(rows.serial[row]),
                first=begin + 1,
                logprob=np.array([one.logprob for one in found], np.float32),
                rank=np.array([one.rank for one in found], np.int32),
                ids=np.array([[id for id, _ in one.best[:wanted]] for one in found], np.int32),
                values=np.array([[v for _, v in one.best[:wanted]] for one in found], np.float32),
            )


@dataclass(frozen=True)
class PromptScore:
    """Of a token by itself: its log-probability, its rank, and all tokens, best first."""

    logprob: float
    rank: int
    best: list[tuple[int, float]]


@cache
def prompt_score(digest: int, token: int) -> PromptScore:
    vocab = tokenizer().vocab_size
    values = logprobs(digest, vocab)
    above = sum(value > values[token] for value in values)
    return PromptScore(values[token], above + 1, likeliest(digest, vocab, vocab))


def expected_prompt(request: Request) -> list[PromptScore]:
    """Of each token but the first of the prompt."""
    found, digest = list[PromptScore](), start_digest(request)
    for position, token in enumerate(request.prompt.tolist()):
        if position:
            found.append(prompt_score(digest, token))
        digest = extended(request, digest, position, token)
    return found


def never(_plan: Plan, _where: str) -> bool:
    return False


@contextmanager
def framing_texts() -> Iterator[None]:
    """Meanwhile, the tokenizer begins texts with token 0. Servers that are open keep their own."""
    tokenizer.cache_clear()
    frame(tokenizer()._backend, 0, None)
    try:
        yield
    finally:
        tokenizer.cache_clear()


def components(breaks: Callable[[Plan, str], bool] = never, **settings: Any) -> EngineComponents:
    """An engine's parts; settings of the scheduler and of the parts by name."""
    depth, rules = settings.pop("depth", 1), settings.pop("rules", NO_RULES)
    own = {one.name for one in fields(EngineSettings)} & settings.keys()
    chosen = EngineSettings(**{name: settings.pop(name) for name in own})
    settings = {
        "num_blocks": 96,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48,
        "max_model_len": MAX_MODEL_LEN,
    } | settings
    scheduler = Scheduler.create(**settings)
    text = tokenizer()
    blocks = settings["num_blocks"] + 1
    oracle = OracleRunner(
        blocks, settings["block_size"], text.vocab_size, host_blocks=settings.get("swap_space", 0)
    )
    port, template = OraclePort(oracle, breaks), ChatTemplate.of(text)
    return EngineComponents("oracle", scheduler, port, text, template, depth, chosen, rules)


def build(_model: str, **settings: Any) -> EngineComponents:
    return components(**settings)


def build_breaking(
    _model: str, step: int, closes: bool = True, **settings: Any
) -> EngineComponents:
    """A device that fails in one step, and then may never close."""
    made = components(lambda plan, where: plan.step == step and where == "wait", **settings)
    if not closes:
        made.runner.close = Event().wait  # type: ignore[method-assign]
    return made


def build_mistaken(_model: str, tokens: int, crowd: int = 1, **settings: Any) -> EngineComponents:
    """A scheduler that makes a mistake after so many tokens, once as many requests are here."""
    made = components(**settings)
    plan = made.scheduler.plan

    def planned(now: float) -> Plan:
        is_early = made.scheduler.stats.sampled < tokens
        assert is_early or made.scheduler.unfinished < crowd, "ours"
        return plan(now)

    made.scheduler.plan = planned  # type: ignore[method-assign]
    return made


def build_stuck(_model: str, step: int, **settings: Any) -> EngineComponents:
    """A device that never comes back from one step."""
    made = components(**settings)
    port = made.runner
    assert isinstance(port, OraclePort)
    wait = port.wait

    def waiting() -> StepResult:
        if port.launched[-1].step == step:
            Event().wait()
        return wait()

    port.wait = waiting  # type: ignore[method-assign]
    return made


def build_for_ever(_model: str, **_settings: Any) -> EngineComponents:
    """One that is never ready."""
    Event().wait()
    raise AssertionError


def expected(
    prompt: str | Sequence[int], params: SamplingParams, seed: int | None = None
) -> tuple[list[int], str]:
    """The tokens and the finish reason that any correct engine gives, without stop strings."""
    text = tokenizer()
    ids = text.encode(prompt) if isinstance(prompt, str) else list(prompt)
    return reference(as_request(ids, params, seed), text.vocab_size, MAX_MODEL_LEN)


def as_request(ids: Sequence[int], params: SamplingParams, seed: int | None = None) -> Request:
    return Request(
        id="reference",
        prompt=ids,  # pyright: ignore[reportArgumentType]
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        eos_token_ids=tokenizer().eos,
        stop_token_ids=tuple(params.stop_token_ids),
        seed=params.seed if seed is None else seed,
        n=params.n,
        best_of=None if params.beams else params.best_of,
        beam_width=params.beams,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        handle=0,
    )


def expected_text(ids: Sequence[int], reason: str) -> str:
    """An end token is no part of the text."""
    return tokenizer().decode(ids[:-1] if reason == "stop" else ids)


def ask(prompt: str, request_id: str = "", **params: Any) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, request_id=request_id, params=SamplingParams(**params))


class Ear:
    """A sink that remembers everything, and that nothing may be told after the end."""

    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.output: RequestOutput | None = None
        self.error: Exception | None = None

    def put(self, delta: TextDelta) -> None:
        assert self.output is None
        assert self.error is None
        earlier = [one for one in self.deltas if one.index == delta.index]
        assert not earlier or earlier[-1].finish_reason is None
        self.deltas.append(delta)

    def close(self, output: RequestOutput) -> None:
        assert self.output is None
        assert self.error is None
        self.output = output
        for answer in output.outputs:
            assert replace(answer, score=None) == self.joined(answer.index)  # pieces have none

    def refuse(self, error: Exception) -> None:
        assert self.output is None
        assert not self.deltas
        self.error = error

    def joined(self, index: int) -> TextDelta:
        first, *rest = [delta for delta in self.deltas if delta.index == index]
        for delta in rest:
            first = first.followed_by(delta)
        return first


def assert_nothing_left(scheduler: Scheduler) -> None:
    scheduler.plan(now=1e9)  # an end is forgotten with the next plan
    scheduler.check()
    state = scheduler.snapshot()
    assert state["free_blocks"] == state["total_blocks"]
    assert state["requests"] == {}
