"""Fewest uncached tokens first."""

from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View


class Shortest(Policy):
    """Orders by uncached tokens, not by output length, which is unknown.

    A stream of short prompts would starve a long one, so after `ageing_s` a request goes first
    whatever its length.
    """

    refresh = True  # the cached prefix of a waiting sequence changes

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (self.view.uncached(sequence),)
