"""Explanations of the requests in a recording."""

from contextlib import suppress

from paceline.core.errors import RequestError
from paceline.core.plan import Plan
from paceline.sched.replay.reader import RecordingEnd
from paceline.sched.replay.replayer import Replay


class RequestLives:
    """Keeps explanations of requests that end, since a scheduler forgets all but the last ones.

    With `request_id`, it keeps the explanation of that request; without, the first line of each.
    """

    def __init__(self, replay: Replay, request_id: str | None = None) -> None:
        self._replay, self._request_id = replay, request_id
        self._ended: dict[str, str] = {}

    def see(self, plan: Plan) -> None:
        """Read a plan of the replay: it lists the requests that ended before it."""
        for name in plan.finished:
            if self._request_id not in (None, name):
                continue
            with suppress(RequestError):  # the scheduler may remember no finished request
                text = self._replay.scheduler.explain(name)
                self._ended[name] = text if self._request_id else first_line(text)

    def explanation(self, request_id: str) -> str:
        """As of the last plan, or of the end of the request. RequestError if there is none."""
        try:
            return self._replay.scheduler.explain(request_id)
        except RequestError:
            if request_id in self._ended:
                return self._ended[request_id]
            if request_id in self._replay.request_ids:
                raise
            reader = self._replay.reader
            steps = self._replay.scheduler.stats.steps
            until = f" up to step {steps:,}" if reader.ending is RecordingEnd.UNREAD else ""
            raise RequestError(
                f"{reader.path} has no request {request_id!r}{until}; "
                f"`paceline explain {reader.path}` lists them"
            ) from None

    def listing(self) -> list[str]:
        """A line for each request, in order of submission."""
        lines: list[str] = []
        for name in self._replay.request_ids:
            try:
                lines.append(first_line(self.explanation(name)))
            except RequestError:
                lines.append(f"{name!r}: finished, and not remembered.")
        return lines


def first_line(text: str) -> str:
    return text.partition("\n")[0]
