"""What guesses draft tokens, and where it is found."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from paceline.core import plugins
from paceline.core.errors import PluginError
from paceline.core.speculation_config import SpeculationConfig


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


def check_shape(proposer: Proposer, drafts: Any, rows: int, most: int) -> None:
    """PluginError unless there are whole numbers, [rows, most]."""
    who = f"proposer {proposer.config.proposer!r}"
    if not isinstance(drafts, Tensor):
        raise PluginError(f"{who} returns {drafts!r:.200}; it must be a tensor")
    shape = tuple(drafts.shape)
    if shape != (rows, most) or drafts.is_floating_point() or drafts.is_complex():
        raise PluginError(
            f"{who} returns a tensor of {drafts.dtype} with the shape {shape}; "
            f"it must have whole numbers and the shape {(rows, most)}"
        )


def check_drafts(proposer: Proposer, drafts: Tensor, number: Tensor, vocab: int) -> None:
    """PluginError unless each row has token ids, up to its number of drafts, and -1 behind them.

    It reads the tensors, so on a GPU it would hold up the steps in flight.
    """
    is_draft = drafts >= 0
    wrong = (drafts < -1) | (drafts >= vocab)
    wrong |= is_draft & (torch.arange(drafts.shape[1]) >= number[:, None])
    wrong[:, 1:] |= is_draft[:, 1:] & ~is_draft[:, :-1]
    if wrong.any():
        row = int(wrong.any(1).nonzero()[0])
        raise PluginError(
            f"proposer {proposer.config.proposer!r} returns {drafts[row].tolist()!s:.200} for a "
            f"row of up to {int(number[row])} drafts; it must be token ids below {vocab}, and -1 "
            "behind them"
        )


def load(config: SpeculationConfig) -> Proposer:
    """Load the proposer by module name in `proposers`, or by dotted path to a class."""
    package = "paceline.runner.proposers"
    return plugins.load("proposer", config.proposer, package, Proposer)(config)
