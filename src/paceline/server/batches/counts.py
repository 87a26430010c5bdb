"""How many lines of a batch have which result."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Lines by result."""

    answered: int = 0
    refused: int = 0  # by the server, with a status
    bad: int = 0  # lines that are not requests
    skipped: int = 0  # answered by an earlier run

    @property
    def done(self) -> int:
        return self.answered + self.refused + self.bad + self.skipped

    def __str__(self) -> str:
        return (
            f"{self.answered} answered, {self.refused} refused, {self.bad} invalid lines, "
            f"{self.skipped} skipped"
        )
