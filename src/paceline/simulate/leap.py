"""Turns of a simulated server that are known and not yet made."""

import numpy as np

from paceline.core.arrays import F64
from paceline.sched.course import Course
from paceline.simulate.profile import FrontEndTerms
from paceline.simulate.timed_runner import Stretch


class Leap:
    """The turns of a course with their times. They happen as they are if no further request reaches
    the engine before them."""

    def __init__(self, course: Course, stretch: Stretch, terms: FrontEndTerms) -> None:
        self.course, self.stretch = course, stretch
        self.sent = course.tokens(len(stretch))  # to clients, in each turn
        self.times: F64 = stretch.ended + terms.deliver_each_s(self.sent)  # when these have them
        self._ends: list[tuple[float, int]] | None = None  # to come, latest first; None: not known

    def __len__(self) -> int:
        return len(self.stretch)

    @property
    def done_at(self) -> float:
        return float(self.stretch.ended[-1])

    def cut(self, time: float) -> bool:
        """A request reaches the engine at this time: drop the turns that begin later. Returns
        whether what is left can be made. Requests that have joined stay in the first turn."""
        turns = int(np.searchsorted(self.stretch.begun, time))
        if self.course.joined:
            turns = max(turns, 1)
        if turns < len(self):
            self.stretch = self.stretch.first(turns)
            self.sent, self.times = self.sent[:turns], self.times[:turns]
            self._ends = None
        return turns >= max(self.course.behind, 1)

    def ends_until(self, time: float) -> list[int]:
        """The requests of which clients know by then that they have ended, since the last call."""
        if self._ends is None:
            handles, turns = self.course.handle.tolist(), self.course.endings(len(self))
            found = [
                (float(self.times[turn]), handles[row]) for turn, rows in turns for row in rows
            ]
            self._ends = sorted(found, reverse=True)
        ends = list[int]()
        while self._ends and self._ends[-1][0] <= time:
            ends.append(self._ends.pop()[1])
        return ends
