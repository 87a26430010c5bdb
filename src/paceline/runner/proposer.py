"""What guesses draft tokens, and where it is found."""

from abc import ABC, abstractmethod

from torch import Tensor

from paceline.core import plugins
from paceline.core.config import SpeculationConfig


class Proposer(ABC):
    """Guesses the tokens that come next in many sequences at once.

    A runner builds the drafts of a step in one call. The tensors are where the runner has its
    tokens, on the CPU or on a GPU; a proposer that never reads them on the host never holds up
    the steps in flight. The same arguments give the same drafts.
    """

    # True: `propose` reads no tensor on the host, and what it returns depends on its arguments and
    # on tensors that stay in place. It is then part of a CUDA graph.
    on_device = False

    def __init__(self, config: SpeculationConfig) -> None:
        self.config = config

    @abstractmethod
    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        """Return up to `number[i]` drafts for row i, as [rows, most] token ids; -1 is none.

        `tokens` [rows, width] has the sequences; the first `known[i]` tokens of row i count, and
        what stands behind them means nothing. `most` is at least the largest `number`. Drafts of
        a row stand at its beginning: behind a -1 there is no draft. Rows without known tokens
        only fill up a batch; their `number` is 0.
        """


def load(config: SpeculationConfig) -> Proposer:
    """Load the proposer by module name in `proposers`, or by dotted path to a class."""
    package = "paceline.runner.proposers"
    return plugins.load("proposer", config.proposer, package, Proposer)(config)
