"""The engine, with one method more: many turns at once."""

from collections.abc import Iterable

from paceline.core.plan import Plan
from paceline.engine.core.engine import Engine


class LeapingEngine(Engine):
    """The engine of a `LeapingScheduler`."""

    @property
    def has_messages(self) -> bool:
        """Are there requests that the latest turn did not accept?"""
        return bool(self._inbox)

    def leap(self, in_flight: Iterable[Plan]) -> None:
        """The scheduler made turns on its own. These steps are in flight now."""
        self._pipeline.put(in_flight)
        self.resting = False
