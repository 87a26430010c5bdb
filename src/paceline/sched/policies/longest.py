"""Most tokens still to come first: a batch of requests ends when its longest one does."""

from paceline.core.config import PolicyConfig
from paceline.core.request import Sequence
from paceline.sched.policy import Policy, View


class Longest(Policy):
    """Orders by the tokens that a request may still generate, as `max_tokens` bounds them.

    For a batch that somebody wants done, all of it, as soon as possible. Short requests fill the
    places that become free, and their prompts the steps of those who decode; in any other order a
    long one that came in late decodes alone at the end. After `ageing_s` a request goes first
    whatever it may generate, so a batch that takes longer ends in the order of arrival.
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (len(sequence.tokens) - sequence.limit,)
