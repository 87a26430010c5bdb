"""The engine, with one method more: many equal turns at once."""

from paceline.engine.core.engine import Engine


class LeapingEngine(Engine):
    """The engine of a `LeapingScheduler`."""

    @property
    def has_messages(self) -> bool:
        """Are there requests that the latest turn did not accept?"""
        return bool(self._inbox)

    def leap(self, steps: int) -> None:
        """The scheduler made so many turns on its own."""
        self._pipeline.skip(steps)
