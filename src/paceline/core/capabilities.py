"""What a runner can do beyond sampling the next token, and how long its steps take."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Protocol

from paceline.core.errors import ConfigError, RequestError
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A request that needs more than this is refused; nothing it asks for is ignored.

    logprobs         reports log-probabilities of sampled tokens (`StepResult.logprob`)
    prompt_logprobs  reports log-probabilities of prompt tokens (`StepResult.prompt`)
    adapters         applies `Request.adapter`
    images           encodes `Request.images`
    constraints      samples only tokens that a grammar allows, for `Request.constraint`
    pooling          reports hidden states of prompts (`StepResult.pooled`)
    processors       applies `Sampling.logits_processors`
    generation       samples tokens; a model that only embeds does not
    step_sizes       positions up to which a step with prompts is filled up; empty: any size
    """

    logprobs: bool = False
    prompt_logprobs: bool = False
    adapters: bool = False
    images: bool = False
    constraints: bool = False
    pooling: bool = False
    processors: bool = False
    generation: bool = True
    step_sizes: tuple[int, ...] = ()

    def check(self, request: Request) -> None:
        """RequestError if the request needs something that is not here."""
        wanted = request.sampling
        if wanted.prompt_logprobs is not None and not self.prompt_logprobs:
            raise RequestError(
                f"prompt_logprobs is {wanted.prompt_logprobs}; this engine reports no "
                "log-probabilities of prompts: remove `prompt_logprobs`"
            )
        if wanted.logprobs is not None and not self.logprobs:
            raise RequestError(
                f"logprobs is {wanted.logprobs}; this engine reports no log-probabilities: "
                "remove `logprobs`"
            )
        if wanted.logits_processors and not self.processors:
            raise RequestError(
                "logits_processors need a runner on a CPU, in this process: remove them, or see "
                "logit_bias, bad_token_ids and allowed_token_ids"
            )
        if request.adapter and not self.adapters:
            raise RequestError(
                f"request {request.id!r} names adapter {request.adapter!r}; this engine runs no "
                "adapters: remove `adapter`"
            )
        if request.images and not self.images:
            raise RequestError(
                f"request {request.id!r} has {len(request.images)} images; this engine "
                "reads text alone: remove `images`"
            )
        self._check_pooling(request)
        self._check_constraint(request)

    def _check_pooling(self, request: Request) -> None:
        if request.pooling and not self.pooling:
            raise RequestError(
                f"request {request.id!r} wants an embedding; this engine has none: remove `pooling`"
            )
        if not request.pooling and not self.generation:
            raise RequestError(
                f"request {request.id!r} wants text; this model only makes embeddings or scores: "
                "use /v1/embeddings or LLM.embed, /classify, or /v1/score and LLM.score"
            )

    def _check_constraint(self, request: Request) -> None:
        if request.constraint is None:
            return
        if not self.constraints and request.constraint.kind == "text":
            field = "bad_words" if request.constraint.banned else "thinking_token_budget"
            raise RequestError(
                f"{field} of request {request.id!r} needs masks of tokens, which this engine has "
                f"not: remove `{field}`"
            )
        if not self.constraints:
            raise RequestError(
                f"request {request.id!r} has a constraint ({request.constraint.kind}); this engine "
                "has no structured output: remove `structured_outputs`"
            )


NS = 10**9  # nanoseconds of a second
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of the steps that are measured

Points = tuple[tuple[int, float], ...]  # positions and seconds, by rising positions


class TimedSteps(Protocol):
    """A runner, as far as those need it who measure its steps."""

    def launch(self, plan: Plan) -> None: ...

    def wait(self) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds that steps took when they were measured."""

    plain: Points  # rows of one position each
    drafted: Points  # rows of several positions, with drafts or of prompts, all of them counted
    least: Points = ()  # by rows, of a step with a single draft; empty: positions alone count
    sizes: tuple[int, ...] = ()  # up to which steps with prompts are filled up; empty: any size

    def __post_init__(self) -> None:
        named = {"plain": self.plain, "drafted": self.drafted}
        named |= {"least": self.least} if self.least else {}
        for name, points in named.items():
            sizes = [size for size, _ in points]
            rising = bool(sizes) and sizes == sorted(set(sizes)) and sizes[0] > 0
            if not rising or not all(isfinite(taken) and taken > 0 for _, taken in points):
                raise ConfigError(
                    f"{name} step times are {points}; they are pairs of positions, which rise, "
                    f"and of positive seconds"
                )

    @staticmethod
    def measured(
        plain: Mapping[int, float],
        drafted: Mapping[int, float],
        least: Mapping[int, float] = MappingProxyType({}),
        sizes: tuple[int, ...] = (),
    ) -> "StepTimes | None":
        """From seconds by positions, in any order. None: no row of several was measured."""
        if not (plain and drafted):
            return None
        points = (tuple(sorted(one.items())) for one in (plain, drafted, least))
        return StepTimes(*points, sizes=sizes)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one more position adds to a step, as it was measured. Whole numbers, so that sums are
    the same on every machine."""

    position_ns: int  # by itself
    read_ns: int = 0  # for each position before it, which its attention reads

    def __post_init__(self) -> None:
        if not (self.position_ns > 0 and self.read_ns >= 0):
            raise ConfigError(
                f"the cost of a position is {self.position_ns} ns and {self.read_ns} ns for each "
                "position before it; the first must be positive, and the second not negative"
            )

    @staticmethod
    def measured(near_s: float, far_s: float, positions: int, distance: int) -> "StepCost":
        """From the seconds of two steps of so many positions, of which the second one has
        `distance` more positions before it."""
        each = max(round(near_s * NS / positions), 1)
        return StepCost(each, max(round((far_s - near_s) * NS / (positions * distance)), 0))
