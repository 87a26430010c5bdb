"""The interface of drafters and proposers, and checks of their drafts."""

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
    """The state of every slot on the device after the latest step. The tensors stay in place.

    The KV of `tokens[s, :position[s]]` is in the blocks of `table[:, s]`.
    """

    tokens: Tensor  # [slots, tokens]
    table: Tensor  # [groups, slots, blocks]
    position: Tensor  # [slots]
    temperature: Tensor  # [slots]; 0: the likeliest token
    key: Tensor  # [slots]; of random numbers, see `token_choice`


@dataclass(frozen=True, slots=True, eq=False)
class DraftingFor:
    """The parts of a runner that its drafter may use.

    A drafter with KV has a separate store with as many blocks: `columns.table` is the block table
    of both. It then has one group, which keeps every position.
    """

    model: Any  # the main model: a Model on the CPU, a CudaModel on a GPU
    columns: SlotColumns
    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True, eq=False)
class DraftInput:
    """The rows of a step that sample, with their tokens on the device.

    Only the first `known[i]` tokens of row i are valid. Rows without known tokens are padding;
    their `number` is 0.
    """

    slot: Tensor  # [rows]
    tokens: Tensor  # [rows, width]
    known: Tensor  # [rows]
    number: Tensor  # [rows]; most drafts of each row
    most: int  # at least the largest `number`, which the host may not know


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """The drafts of rows; after a -1, a row has no further draft.

    Without probabilities, a draft must be determined by the tokens before it: then comparing it
    with a token that the model samples keeps the model's distribution. A draft drawn at random
    needs the probabilities with which it was drawn. In rows of temperature 0, drafts are compared
    in either case.
    """

    ids: Tensor  # [rows, most]; -1 is none
    probabilities: Tensor | None = None  # [rows, most, vocab] in float32

    def up_to(self, most: int) -> "Drafts":
        """The first drafts of each row."""
        if self.probabilities is None:
            return Drafts(self.ids[:, :most])
        return Drafts(self.ids[:, :most], self.probabilities[:, :most])


class Drafter(ABC):
    """Drafts the next tokens of many sequences at once.

    A runner calls, in this order: `attach` once, before any step; `follow` with every plan; `draft`
    before it computes a step with drafts; and, if `observes` is set, `observe` after every step.
    The tensors are on the runner's device; a drafter that does not read them on the host does not
    delay the steps in flight.
    """

    # True: `draft` reads no tensor on the host, and its result depends only on its arguments and
    # on tensors that stay in place. It then becomes part of a CUDA graph.
    on_device = False
    draws = False  # drafts may be drawn at random on a GPU; graphs cannot verify those
    reads_tokens = True  # `draft` reads `DraftInput.tokens`
    observes = False  # `observe` is called after every step
    layers: tuple[int, ...] = ()  # of the model, whose inputs are passed to `observe`
    cell_bytes = 0  # of its KV, per position
    store_count = 0  # its KV stores, whose blocks are swapped too
    # "mtp head": in the checkpoint of the model; the others are named by `speculative_model`
    weights: Literal["none", "model", "eagle3 head", "mtp head"] = "none"

    def __init__(self, config: SpeculationConfig) -> None:
        self.config = config

    def attach(self, runner: DraftingFor) -> None:  # noqa: B027
        """Bind to a runner, replacing any previous one."""

    def accompany(self, model: Any, attention: Any) -> tuple[Any, Any]:
        """Return the model and attention with which a GPU runner computes steps: a drafter may
        compute the same positions in the same graphs."""
        return model, attention

    def captures(self) -> list[Callable[[], None]]:
        """Functions to run once on a GPU at the start, so that no kernel is compiled later."""
        return []

    def reserve_host(self, blocks: int) -> None:  # noqa: B027
        """Allocate host memory for swapping so many blocks."""

    def follow(self, plan: Plan) -> None:  # noqa: B027
        """Apply a plan that is launched. The slot columns are still those of the previous plan.

        Relevant are `released` and `admitted` slots, `grown` tables, and, for a drafter with KV,
        `copies`, `swap_out` and `swap_in`, which precede the writes of the step.
        """

    def observe(self, batch: Batch, slot: Tensor, inputs: Tensor | None) -> None:  # noqa: B027
        """Called after the model computed a batch, whose rows have these slots [rows], and its
        samples are in the columns. `inputs` [positions, layers * width] are the inputs of
        `layers`; None without layers."""

    @abstractmethod
    def draft(self, rows: DraftInput) -> Drafts:
        """Return up to `number[i]` drafts for row i."""


class Proposer(Drafter):
    """Drafts from the tokens of a sequence alone: the same arguments give the same drafts."""

    def draft(self, rows: DraftInput) -> Drafts:
        return Drafts(self.propose(rows.tokens, rows.known, rows.number, rows.most))

    @abstractmethod
    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        """Return up to `number[i]` drafts for row i, as [rows, most] token ids; -1 is none. The
        arguments are those of `DraftInput`."""


def check_shape(drafter: Drafter, drafts: Any, rows: int, most: int) -> Drafts:
    """PluginError unless the drafts are integers, [rows, most]."""
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
    """PluginError unless each row has at most its number of token ids, and -1 after them.

    It reads the tensors, so on a GPU it would delay the steps in flight.
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
    """Create a drafter for a CPU, or one without weights."""
    return class_of(config)(config)
