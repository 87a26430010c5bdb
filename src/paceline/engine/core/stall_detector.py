"""Detects from outside that a step loop is stuck."""

from time import monotonic

from paceline.core.request import Request
from paceline.engine.core.messages import Delivery, Question
from paceline.engine.core.ports import Clock


class StallDetector:
    """Counts the seconds without a delivery while requests are ready to run.

    A step loop that is stuck cannot report itself, so its core watches it from the caller's side:
    every step that computes something is delivered, and silence means that none has ended. A
    request that is parked, or a loop that is paused, explains the silence.
    """

    def __init__(self, stall_s: float, clock: Clock = monotonic) -> None:
        self._stall_s, self._clock = stall_s, clock
        self._open: dict[str, int] = {}  # handles by id
        self._parked: set[str] = set()  # of those that are open
        self._paused = False
        self._since = clock()

    def submitted(self, request: Request, parked: str = "") -> None:
        """Call it before the request is sent, so that it precedes the end."""
        if not self._is_waiting:
            self._since = self._clock()
        self._open[request.id] = request.handle
        if parked:
            self._parked.add(request.id)

    def ended(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._parked.discard(request_id)

    def parked(self, request_id: str) -> None:
        if request_id in self._open:
            self._parked.add(request_id)

    def woken(self, request_id: str) -> None:
        if not self._is_waiting:
            self._since = self._clock()
        self._parked.discard(request_id)

    def asked(self, question: Question) -> None:
        if question.verb in ("pause", "resume"):
            self._paused, self._since = question.verb == "pause", self._clock()

    def delivered(self, delivery: Delivery) -> None:
        self._since = self._clock()
        if self._parked:  # a request with new tokens runs, so it was not parked
            running = set(delivery.handle.tolist())
            begun = [one for one in self._parked.copy() if self._open.get(one) in running]
            self._parked.difference_update(begun)
        for one in delivery.ended:
            if one.child < 0:
                self.ended(one.request_id)
        for one in delivery.refused:
            self.ended(one.request_id)

    def stalled(self) -> str | None:
        """None, or a message with the seconds since the last step."""
        silence = self._clock() - self._since
        if self._paused or not self._is_waiting or silence <= self._stall_s:
            return None
        return f"no step has ended for {silence:.0f} s, and requests are waiting"

    @property
    def _is_waiting(self) -> bool:
        """Whether a request is open that is not parked."""
        return len(self._open) > len(self._parked)
