"""Beam search over candidate tokens."""

from dataclasses import dataclass, replace

from paceline.core.plan import Choice
from paceline.core.request import Finish, Request

NO_SCORE = -1e9  # initial score of all beams but the first, from which all start


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam with a possible next token."""

    parent: int  # index of the beam it continues
    token: int
    score: float  # log-probability of everything generated


@dataclass(frozen=True, slots=True)
class Candidate:
    """A likely next token."""

    token: int
    logprob: float


class BeamSearch:
    """Keeps `width` beams running, best first, and the best `width` finished outputs.

    Of the best continuations of all beams, those that stop and rank among the first `width` are
    finished; the best that do not stop keep running. The score of a finished output is its
    log-probability divided by its length to the power of `length_penalty`.
    """

    def __init__(self, request: Request, max_tokens: int) -> None:
        self._request = request
        self._max_tokens = max_tokens
        self.running = list(range(request.beam_width))  # beams by index, best first
        self.scores = [0.0] + [NO_SCORE] * (request.beam_width - 1)  # by index
        self.finished: list[Choice] = []  # best first

    def advance(
        self, outputs: list[tuple[int, ...]], candidates: list[list[Candidate]]
    ) -> list[Continuation]:
        """Choose the next token of each beam; `outputs` and `candidates` are by beam.

        Returns the running continuations, best first, or none if the search is over.
        """
        width, length = self._request.beam_width, len(outputs[0]) + 1
        ranked = [
            (one, self._stop(one.token, length)) for one in self._best_continuations(candidates)
        ]
        for one, stop in ranked[:width]:
            if stop is not None:
                self._finish(outputs[one.parent], one, stop)
        going = [one for one, stop in ranked if stop is None][:width]
        if not going or self._over(going[0], length):
            return []
        # If a constraint allows few tokens, the remaining beams repeat the best continuation.
        return going + [replace(going[0], score=NO_SCORE)] * (width - len(going))

    def follow(self, assigned: dict[int, Continuation]) -> None:
        """Record the continuation of each beam, best first."""
        self.running = list(assigned)
        for beam, one in assigned.items():
            self.scores[beam] = one.score

    def choices(self) -> tuple[Choice, ...]:
        """The best finished outputs, as many as the request asks for."""
        return tuple(self.finished[: self._request.n])

    def _best_continuations(self, candidates: list[list[Candidate]]) -> list[Continuation]:
        """The best continuations of all beams, best first."""
        found = [
            Continuation(beam, one.token, self.scores[beam] + one.logprob)
            for beam in self.running
            for one in candidates[beam]
        ]
        found.sort(key=lambda one: -one.score)
        return found[: self._request.candidates]

    def _stop(self, token: int, length: int) -> Finish | None:
        if self._request.stops_at(token, length):
            return Finish.STOP
        return Finish.LENGTH if length >= self._max_tokens else None

    def _finish(self, outputs: tuple[int, ...], last: Continuation, stop: Finish) -> None:
        tokens = (*outputs, last.token)
        token = last.token if stop is Finish.STOP else None
        score = self._normalized(last.score, len(tokens))
        self.finished.append(Choice(tokens, stop, score, token))
        self.finished.sort(key=lambda choice: -choice.score)
        del self.finished[self._request.beam_width :]

    def _over(self, best: Continuation, length: int) -> bool:
        """Can no running beam beat the finished outputs?"""
        if len(self.finished) < self._request.beam_width:
            return False
        if self._request.early_stopping is True:
            return True
        longest = self._request.early_stopping == "never" and self._request.length_penalty > 0
        attainable = self._normalized(best.score, self._max_tokens if longest else length)
        return attainable <= self.finished[-1].score

    def _normalized(self, score: float, length: int) -> float:
        return float(score / length**self._request.length_penalty)


def assign(continuations: list[Continuation]) -> dict[int, Continuation]:
    """Assign continuations to beams, best first.

    The best continuation of each parent stays in the parent's beam, so a parent is never
    overwritten. The others take beams that are no parent.
    """
    in_place: dict[int, Continuation] = {}
    for one in continuations:
        in_place.setdefault(one.parent, one)
    vacant = iter(beam for beam in range(len(continuations)) if beam not in in_place)
    return {
        one.parent if in_place[one.parent] is one else next(vacant): one for one in continuations
    }
