"""Beam search over candidates: which continuations live on, which have ended, when to stop."""

from dataclasses import dataclass

from paceline.core.plan import Choice
from paceline.core.request import Finish, Request

UNBORN = -1e9  # score of beams that have not come from anywhere yet: all begin alike


@dataclass(frozen=True, slots=True)
class Step:
    """A beam's next token."""

    parent: int  # index of the beam it continues
    token: int
    score: float  # log-probability of everything generated


@dataclass(frozen=True, slots=True)
class Candidate:
    """A continuation that the model finds likely."""

    token: int
    logprob: float


class BeamSearch:
    """Keeps `width` beams running, best first, and the best `width` ends.

    Of the best continuations of all beams, those that stop and rank among the first `width`
    are ends, and the best that do not stop run on. An end counts its log-probability
    divided by its length to the power of `length_penalty`.
    """

    def __init__(self, request: Request, most_tokens: int) -> None:
        self._request = request
        self._most = most_tokens
        self.running = list(range(request.beam_width))  # beams by index, best first
        self.scores = [0.0] + [UNBORN] * (request.beam_width - 1)  # by index
        self.ends: list[Choice] = []  # best first

    def advance(
        self, outputs: list[tuple[int, ...]], candidates: list[list[Candidate]]
    ) -> list[Step]:
        """One token further; `outputs` and `candidates` by beam. The beams that go on, best
        first, or none if the search is over."""
        steps = self._ranked(candidates)
        length = len(outputs[0]) + 1
        stops = [self._stop(step.token, length) for step in steps]
        for step, stop in list(zip(steps, stops, strict=True))[: self._request.beam_width]:
            if stop is not None:
                self._end(outputs[step.parent], step, stop)
        going = [step for step, stop in zip(steps, stops, strict=True) if stop is None]
        going = going[: self._request.beam_width]
        if len(going) < self._request.beam_width:  # too few to go on with, whatever the model is
            for step in going:
                self._end(outputs[step.parent], step, Finish.LENGTH)
            return []
        return [] if self._over(going[0], length) else going

    def follow(self, placed: dict[int, Step]) -> None:
        """The beams now continue these steps, by index, best first."""
        self.running = list(placed)
        for beam, step in placed.items():
            self.scores[beam] = step.score

    def choices(self) -> tuple[Choice, ...]:
        """The best ends, as many as were asked for."""
        return tuple(self.ends[: self._request.n])

    def _ranked(self, candidates: list[list[Candidate]]) -> list[Step]:
        """The best continuations of all beams, best first."""
        steps = [
            Step(beam, one.token, self.scores[beam] + one.logprob)
            for beam in self.running
            for one in candidates[beam]
        ]
        steps.sort(key=lambda step: -step.score)
        return steps[: self._request.candidates]

    def _stop(self, token: int, length: int) -> Finish | None:
        if self._request.stops_at(token, length):
            return Finish.STOP
        return Finish.LENGTH if length >= self._most else None

    def _end(self, outputs: tuple[int, ...], step: Step, stop: Finish) -> None:
        tokens = (*outputs, step.token)
        token = step.token if stop is Finish.STOP else None
        score = self._weighed(step.score, len(tokens))
        self.ends.append(Choice(tokens, stop, score, token))
        self.ends.sort(key=lambda end: -end.score)
        del self.ends[self._request.beam_width :]

    def _over(self, best: Step, length: int) -> bool:
        """Is there nothing to gain any more?"""
        if len(self.ends) < self._request.beam_width:
            return False
        if self._request.early_stopping is True:
            return True
        longest = self._request.early_stopping == "never" and self._request.length_penalty > 0
        attainable = self._weighed(best.score, self._most if longest else length)
        return attainable <= self.ends[-1].score

    def _weighed(self, score: float, length: int) -> float:
        return float(score / length**self._request.length_penalty)
