"""Runs steps of every kind before there are requests, so that none of them compiles later."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.multimodal import ImageInput, MultimodalConfig
from paceline.core.plan import Ended
from paceline.core.request import Finish, Request
from paceline.core.sampling import Sampling
from paceline.core.settings.config import CacheConfig, Config, StepConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.loop.ports import Runner
from paceline.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

Dry = AbstractContextManager[Any]

TOKEN, OTHER = 1, 0  # every model has them
LENGTH = 8  # tokens of a prompt whose length does not matter
OUTPUTS = 3
SAMPLINGS = (
    Sampling(temperature=0.0, logprobs=1),
    Sampling(temperature=0.8),
    Sampling(top_k=2),
    Sampling(top_p=0.9),
    Sampling(min_p=0.1),
    Sampling(top_k=2, top_p=0.9, min_p=0.1, logprobs=2),
    Sampling(repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1),
    Sampling(logit_bias={TOKEN: 1.0}, bad_token_ids=(OTHER,)),
    Sampling(allowed_token_ids=(OTHER, TOKEN)),
    Sampling(logprob_token_ids=(OTHER,)),
)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Requests that run together, in steps of at most `budget` positions."""

    budget: int
    requests: tuple[Request, ...]


class WarmUp:
    """Runs requests of its own through schedulers of its own on an idle runner.

    Scored prompts fit into no CUDA graph. They stand for all steps that are launched kernel by
    kernel: with each power of two as the number of positions, such a step takes every path that
    depends on this number. Images whose positions read each other fit into no graph either.
    """

    def __init__(
        self, runner: Runner, config: Config, depth: int, image: ImageInput | None = None
    ) -> None:
        """`image` is one that prompts may begin with; None: the model reads none."""
        self._runner, self._config, self._depth = runner, config, depth
        self._image = image

    def run(
        self, report: Callable[[int, int], None], dry_run: Callable[[], Dry] = nullcontext
    ) -> None:
        """Run everything; `report` gets the number of rehearsals so far, and of all.

        In a dry run the runner prepares steps, and returns any tokens. Which drafts are right
        depends on them, so an engine with drafts computes everything afterwards; others compute
        each way to choose a token.
        """
        dry = [*self._prompts(), *self._prompts_with_images(), self._choices()]
        drafts = self._drafts()
        computed = [*dry, *drafts] if drafts else dry[-1:]
        total = len(dry) + len(computed)
        with dry_run():
            for done, rehearsal in enumerate(dry):
                report(done, total)
                self._rehearse(rehearsal, drafts=0)
        for done, rehearsal in enumerate(computed, len(dry)):
            report(done, total)
            self._rehearse(rehearsal, self._config.speculation.num_speculative_tokens)

    def _prompts(self) -> list[Rehearsal]:
        """Scored prompts, in steps of 1, 2, 4 and so many positions, and of as many as fit."""
        cache, step = self._config.cache, self._config.step
        most = min(step.max_num_batched_tokens, cache.num_blocks * cache.block_size // 2)
        powers = [1 << power for power in range(most.bit_length())]
        return [self._prompts_of(positions) for positions in dict.fromkeys((*powers, most))]

    def _prompts_of(self, positions: int) -> Rehearsal:
        """Prompts that fill a step: their last token is in the next one."""
        step = self._config.step
        longest = max(step.max_model_len - 1 - OUTPUTS, 1)
        number = min(-(-positions // longest), step.max_num_seqs, positions)
        each = min(positions // number, longest)
        scores = Sampling(temperature=0.0, prompt_logprobs=1)
        rows = range(number)
        return Rehearsal(positions, tuple(request(f"prompt {n}", scores, each + 1) for n in rows))

    def _prompts_with_images(self) -> list[Rehearsal]:
        """Prompts of as many positions that are not scored. The first begins with an image."""
        config, image = self._config, self._image
        if image is None or image.length > min(config.encoder_budget, config.encoder_capacity):
            return []
        found: list[Rehearsal] = []
        for scored in self._prompts():
            each = len(scored.requests[0].prompt) - 1
            rows, plain = range(len(scored.requests)), Sampling(temperature=0.0)
            first, *rest = [request(f"image {row}", plain, each) for row in rows]
            if image.length <= each:
                both = replace(first, images=(image,)), *rest
                found.append(Rehearsal(scored.budget, both))
        return found

    def _choices(self) -> Rehearsal:
        """Every way to choose a token, several sequences of a prompt, and beams."""
        step = self._config.step
        plain, length = Sampling(), self._length
        ways = [request(f"choice {n}", way, length) for n, way in enumerate(SAMPLINGS)]
        first = request("stop", plain, length)
        ways += [
            replace(first, min_tokens=1, eos_token_ids=(OTHER,)),
            replace(first, id="several", n=2),
            replace(first, id="beams", n=2, beam_width=2, sampling=Sampling(temperature=0.0)),
        ]
        fitting = [way for way in ways if way.width <= step.max_num_seqs]
        return Rehearsal(step.max_num_batched_tokens, tuple(fitting))

    def _drafts(self) -> list[Rehearsal]:
        """All drafts that a row may have, for rows that choose in different ways and by temperature
        alone."""
        most = self._config.speculation.num_speculative_tokens
        if not most:
            return []
        budget, sizes = self._config.step.max_num_batched_tokens, (self._length, 2 * (1 + most))
        various = (request(f"drafted {n}", way, *sizes) for n, way in enumerate(SAMPLINGS))
        plain = request("drafted", Sampling(temperature=0.0), *sizes)
        return [Rehearsal(budget, tuple(various)), Rehearsal(budget, (plain,))]

    @property
    def _length(self) -> int:
        return max(min(LENGTH, self._config.step.max_model_len // 4), 1)

    def _rehearse(self, rehearsal: Rehearsal, drafts: int) -> None:
        cache, step = self._config.cache, self._config.step
        rows = min(step.max_num_seqs, rehearsal.budget)
        config = Config(
            cache=CacheConfig(cache.num_blocks, cache.block_size, enable_prefix_caching=False),
            step=StepConfig(rows, rehearsal.budget, step.max_model_len),
            speculation=replace(
                self._config.speculation, speculation="fixed", num_speculative_tokens=drafts
            ),
            encoder=MultimodalConfig(self._config.encoder_budget, self._config.encoder_capacity),
        )
        engine = Engine(Scheduler(config), self._runner, depth=self._depth)
        for one in rehearsal.requests:
            engine.submit(one)
        ended = all_ends(engine)
        if engine.broken:
            raise EngineFailed(f"a step before the first request failed: {engine.broken}")
        engine.turn(while_idle=True)  # the runner learns which slots were released
        failures = dict.fromkeys(one.message for one in ended if one.finish is Finish.ERROR)
        for message in failures:
            budget = rehearsal.budget
            log.warning("a step of up to %d positions failed at the start: %s", budget, message)


def all_ends(engine: Engine) -> list[Ended]:
    """Run the requests of an engine; returns how they ended."""
    ended: list[Ended] = []
    while not engine.idle:
        if (delivery := engine.turn()) is not None:
            ended += delivery.ended
    return ended


def request(name: str, sampling: Sampling, length: int, outputs: int = OUTPUTS) -> Request:
    """A prompt of one token again and again, so that drafts are found in it."""
    return Request(
        id=name,
        prompt=[TOKEN] * length,
        max_tokens=outputs,
        ignore_eos=True,
        sampling=sampling,
    )
