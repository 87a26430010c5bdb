"""A clock that stands still until the simulation moves it."""


class VirtualClock:
    """Call it for the time, in seconds. It never runs backwards."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance_to(self, time: float) -> None:
        """Move on to `time`. An earlier time changes nothing."""
        self._now = max(self._now, time)
