"""Interface of drafters, which guess tokens, and checks of their drafts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from paceline.core import plugins
from paceline.core.errors import PluginError
from paceline.core.plan import Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.batch import Batch
from paceline.runner.tensors import to_ints

PACKAGE = "paceline.runner.proposers"  # one file per proposer, found by its name


class SlotColumns(Protocol):
    """The state of every slot on the device, as steps leave it. The tensors stay in place.

    `tokens[s, :position[s]]` have their KV in the blocks of `table[:, s]`.
    """

    tokens: Tensor  # [slots, tokens]
    table: Tensor  # [groups, slots, blocks]
    position: Tensor  # [slots]
    temperature: Tensor  # [slots]; 0: the likeliest token
    key: Tensor  # [slots]; of random numbers, see `token_choice`


@dataclass(frozen=True, slots=True, eq=False)
class DraftingFor:
    """The parts of a runner that its drafter may use.

    KV of its own, if any, is in a store of its own with as many blocks: `columns.table` is the
    block table of both. It has one group then, which keeps every position.
    """

    model: Any  # whose tokens are guessed: a Model on the CPU, a CudaModel on a GPU
    columns: SlotColumns
    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True, eq=False)
class DraftInput:
    """The rows of a step that sample, each with all tokens that are known on the device.

    The first `known[i]` tokens of row i count, and what stands behind them means nothing. Rows
    without known tokens only fill up a batch; their `number` is 0.
    """

    slot: Tensor  # [rows]
    tokens: Tensor  # [rows, width]
    known: Tensor  # [rows]
    number: Tensor  # [rows]; drafts that a row may have
    most: int  # at least the largest `number`, which the host may not know


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Drafts of each row stand at its beginning: behind a -1 there is no draft.

    Without probabilities, a draft must follow from the tokens before it: then a token that the
    model samples by itself and a draft that agrees with it keep the model's distribution. A draft
    that was drawn at random needs the probabilities that it was drawn by. Rows of temperature 0
    are compared all the same.
    """

    ids: Tensor  # [rows, most]; -1 is none
    probabilities: Tensor | None = None  # [rows, most, vocab] in float32; each draft was drawn by

    def up_to(self, most: int) -> "Drafts":
        """The first drafts of each row."""
        if self.probabilities is None:
            return Drafts(self.ids[:, :most])
        return Drafts(self.ids[:, :most], self.probabilities[:, :most])


class Drafter(ABC):
    """Guesses the tokens that come next in many sequences at once.

    A runner calls, in this order: `attach` once, before any step; `follow` with every plan;
    `draft` before it computes a step with drafts; and, if the drafter observes, `observe` after
    any step. The tensors are where the runner has its tokens, on the CPU or on a GPU; a drafter
    that never reads them on the host never holds up the steps in flight.
    """

    # True: `draft` reads no tensor on the host, and what it returns depends on its arguments and
    # on tensors that stay in place. It is then part of a CUDA graph.
    on_device = False
    draws = False  # drafts may be drawn at random on a GPU too; no graph verifies those
    reads_tokens = True  # `draft` reads `DraftInput.tokens`
    observes = False  # `observe` is called after every step
    layers: tuple[int, ...] = ()  # of the model, whose inputs `observe` gets
    cell_bytes = 0  # of its own KV, for each position of a block
    store_count = 0  # stores of its own, whose blocks are swapped too
    weights: Literal["none", "model", "eagle3 head"] = "none"  # what `speculative_model` names

    def __init__(self, config: SpeculationConfig) -> None:
        self.config = config

    def attach(self, runner: DraftingFor) -> None:  # noqa: B027
        """Bind to a runner, replacing any previous one."""

    def accompany(self, model: Any, attention: Any) -> tuple[Any, Any]:
        """Return what a runner on a GPU computes steps with, instead of its model and attention: a
        drafter may compute the same positions in the same graphs."""
        return model, attention

    def captures(self) -> list[Callable[[], None]]:
        """Functions to run once on a GPU before there are requests, so that nothing is compiled
        later, beside `draft` in graphs."""
        return []

    def reserve_host(self, blocks: int) -> None:  # noqa: B027
        """Plans may swap so many blocks."""

    def follow(self, plan: Plan) -> None:  # noqa: B027
        """A plan is launched. The slot columns are still those of the plan before.

        `released` and `admitted` slots, `grown` tables, and for KV of its own `copies`, `swap_out`
        and `swap_in`, which come before anything that the step writes.
        """

    def observe(self, batch: Batch, slot: Tensor, inputs: Tensor | None) -> None:  # noqa: B027
        """The model computed a batch whose rows have these slots [rows], and the columns have what
        it sampled. `inputs` [positions, layers * width] is what the layers read, in the order of
        `layers`; None without layers."""

    @abstractmethod
    def draft(self, rows: DraftInput) -> Drafts:
        """Return up to `number[i]` drafts for row i."""


class Proposer(Drafter):
    """Guesses by the tokens of a sequence alone: the same arguments give the same drafts."""

    def draft(self, rows: DraftInput) -> Drafts:
        return Drafts(self.propose(rows.tokens, rows.known, rows.number, rows.most))

    @abstractmethod
    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        """Return up to `number[i]` drafts for row i, as [rows, most] token ids; -1 is none. The
        arguments are those of `DraftInput`."""


def check_shape(drafter: Drafter, drafts: Any, rows: int, most: int) -> Drafts:
    """PluginError unless there are whole numbers, [rows, most]."""
    who = f"proposer {drafter.config.proposer!r}"
    if not isinstance(drafts, Drafts):
        raise PluginError(f"{who} returns {drafts!r:.200}; it must be of type Drafts")
    ids: Any = drafts.ids
    if not isinstance(ids, Tensor):
        raise PluginError(f"{who} returns {ids!r:.200}; it must be a tensor")
    shape = tuple(ids.shape)
    if shape != (rows, most) or ids.is_floating_point() or ids.is_complex():
        raise PluginError(
            f"{who} returns a tensor of {ids.dtype} with the shape {shape}; "
            f"it must have whole numbers and the shape {(rows, most)}"
        )
    if drafts.probabilities is not None and drafts.probabilities.shape[:2] != (rows, most):
        shape = tuple(drafts.probabilities.shape)
        raise PluginError(
            f"{who} returns probabilities with the shape {shape}; it must begin with {(rows, most)}"
        )
    return drafts


def check_drafts(drafter: Drafter, drafts: Tensor, number: Tensor, vocab: int) -> None:
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
            f"proposer {drafter.config.proposer!r} returns {to_ints(drafts[row])!s:.200} for a "
            f"row of up to {int(number[row])} drafts; it must be token ids below {vocab}, and -1 "
            "behind them"
        )


def class_of(
    config: SpeculationConfig, known: str | Mapping[str, str | type[Drafter]] = PACKAGE
) -> type[Drafter]:
    """The class of a proposer, by name or by dotted path."""
    return plugins.load("proposer", config.proposer, known, Drafter)


def load(config: SpeculationConfig) -> Drafter:
    """Build a proposer for a CPU, or one that has no weights."""
    return class_of(config)(config)
