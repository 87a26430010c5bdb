"""Least work left first, counting what the prefix cache already holds."""

from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View


class Shortest(Policy):
    """Orders by uncached tokens, never by output length, which is not known.

    A long prompt would wait forever behind a stream of short ones, so after `ageing_s`
    a request goes first whatever its length.
    """

    refresh = True  # the cache fills and empties while a sequence waits

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (self.view.uncached(sequence),)
