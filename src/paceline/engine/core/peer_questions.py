"""Questions of one front end to all others."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any

from paceline.engine.core.front_end_link import FrontEndLink
from paceline.engine.core.front_end_wire import PeerAnswer, PeerQuestion
from paceline.engine.core.wire import NumberedAnswer


@dataclass(slots=True)
class RelayedQuestion:
    """A question that some front ends have not answered yet."""

    asker: FrontEndLink
    number: int  # that the asker gave it
    waiting: set[int]  # numbers of front ends
    answers: list[Any] = field(default_factory=list[Any])


class PeerQuestions:
    """A question is answered with a list when each front end has answered it or has left."""

    def __init__(self) -> None:
        self._numbers = count()
        self._open: dict[int, RelayedQuestion] = {}
        self._lock = Lock()

    def relay(
        self, asker: FrontEndLink, question: PeerQuestion, others: Iterable[FrontEndLink]
    ) -> None:
        asked = list(others)
        relayed = RelayedQuestion(asker, question.number, {one.number for one in asked})
        with self._lock:
            number = next(self._numbers)
            self._open[number] = relayed
        for one in asked:
            one.send(PeerQuestion(number, question.verb, question.names))
        self._finish()

    def answered(self, link: FrontEndLink, answer: PeerAnswer) -> None:
        with self._lock:
            if (relayed := self._open.get(answer.number)) is not None:
                relayed.waiting.discard(link.number)
                relayed.answers.append(answer.value)
        self._finish()

    def left(self, link: FrontEndLink) -> None:
        with self._lock:
            for relayed in self._open.values():
                relayed.waiting.discard(link.number)
        self._finish()

    def _finish(self) -> None:
        """Send the answers that are complete."""
        with self._lock:
            complete = [number for number, one in self._open.items() if not one.waiting]
            finished = [self._open.pop(number) for number in complete]
        for one in finished:
            one.asker.send(NumberedAnswer(one.number, one.answers))
