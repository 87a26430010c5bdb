"""Linear recurrences of a matrix for each head, in steps and in chunks.

At each position, with S [key_dim, value_dim] of a head:

    S    = exp(decay) * S
    S    = S + key * value                         adds values, or
    S    = S + key * rate * (value - key @ S)      corrects them: the delta rule
    read = query @ S

All is float32. Decays are logarithms, at most 0, of each head or of each row of S.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from paceline.runner.state_store import StateRows
from paceline.runner.tensors import solve_triangular

CHUNK, BLOCK = 64, 8  # positions


@dataclass(frozen=True, slots=True, eq=False)
class Recurrence:
    """The inputs of a recurrence; positions are first."""

    query: Tensor  # [positions, heads, key_dim]
    key: Tensor  # [positions, heads, key_dim]
    value: Tensor  # [positions, heads, value_dim]
    decay: Tensor  # [positions, heads, 1 or key_dim]
    rate: Tensor | None = None  # [positions, heads, 1]; None: values are added

    def at(self, positions: Tensor | slice) -> "Recurrence":
        return self._each(lambda one: one[positions])

    def by_head(self) -> "Recurrence":
        """The same with heads first."""
        return self._each(lambda one: one.transpose(0, 1))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Recurrence":
        return Recurrence(
            change(self.query),
            change(self.key),
            change(self.value),
            change(self.decay),
            None if self.rate is None else change(self.rate),
        )


class Inputs(Protocol):
    """The inputs of a recurrence of any kind; positions are first."""

    @property
    def value(self) -> Tensor:
        """Of the shape of what positions read."""
        ...

    def at(self, positions: Tensor | slice) -> Self: ...


InputsT = TypeVar("InputsT", bound=Inputs)


def advance(rows: StateRows, states: Tensor, inputs: Recurrence) -> Tensor:
    """Advance the states [slots, heads, key_dim, value_dim] of all rows. Returns what each position
    reads, [positions, heads, value_dim]."""
    return by_rows(rows, states, inputs, step, run)


def by_rows(
    rows: StateRows,
    states: Tensor,
    inputs: InputsT,
    step: Callable[[Tensor, InputsT], Tensor],
    run: Callable[[Tensor, InputsT], Tensor],
) -> Tensor:
    """The same for any recurrence. `step` advances several states by one position each, and `run`
    one state by several positions."""
    found = torch.empty_like(inputs.value)
    if len(rows.single):
        state = states[rows.single]
        found[rows.single_at] = step(state, inputs.at(rows.single_at))
        states[rows.single] = state
    for positions, slot in rows.longer:
        found[positions] = run(states[slot], inputs.at(positions))
    return found


def step(state: Tensor, inputs: Recurrence) -> Tensor:
    """Advance states [n, heads, key_dim, value_dim] by one position each, in place."""
    state.mul_(inputs.decay.exp().unsqueeze(-1))
    key, value = inputs.key.unsqueeze(-2), inputs.value.unsqueeze(-2)  # [n, heads, 1, …]
    if inputs.rate is not None:
        value = (value - key @ state).mul_(inputs.rate.unsqueeze(-1))
    state.add_(key.transpose(-1, -2) * value)
    return (inputs.query.unsqueeze(-2) @ state).squeeze(-2)


def run(state: Tensor, inputs: Recurrence) -> Tensor:
    """Advance one state [heads, key_dim, value_dim] by several positions, in place."""
    found: list[Tensor] = []
    for first in range(0, len(inputs.key), CHUNK):
        part = inputs.at(slice(first, first + CHUNK)).by_head()
        found.append(chunk(state, part).transpose(0, 1))
    return torch.cat(found)


def chunk(state: Tensor, inputs: Recurrence) -> Tensor:
    """Advance one state by the positions of a chunk, in place; inputs are [heads, positions, …].

    Values that are corrected depend on each other, through a triangle: with D the decays since the
    beginning of the chunk,

        new[i] = rate[i] * (value[i] - exp(D[i]) * key[i] @ S
                            - sum over j < i of (exp(D[i] - D[j]) * key[i] @ key[j]) * new[j])
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    total = inputs.decay.cumsum(dim=1)  # [heads, positions, 1 or key_dim]
    since = total.exp()
    scores, *rest = products((query,) if inputs.rate is None else (query, key), key, total)
    if inputs.rate is not None:
        triangle = rest[0].tril_(-1).mul_(inputs.rate)
        wanted = (value - (key * since) @ state).mul_(inputs.rate)
        value = solve_triangular(triangle, wanted, upper=False, unitriangular=True)
    found = (query * since) @ state + scores @ value
    last = total[:, -1:]
    state.mul_(since[:, -1].unsqueeze(-1))
    state.add_((key * (last - total).exp()).transpose(1, 2) @ value)
    return found


def products(lefts: Sequence[Tensor], right: Tensor, total: Tensor) -> Sequence[Tensor]:
    """exp(D[i] - D[j]) * left[i] @ right[j] for j <= i, and 0 for others, of each left:
    [heads, i, j]."""
    if total.shape[-1] > 1:
        return by_dimension(torch.stack(tuple(lefts), dim=1), right.unsqueeze(1), total)
    decay = decays(total).squeeze(-1)
    return [(left @ right.transpose(1, 2)).mul_(decay) for left in lefts]


def by_dimension(lefts: Tensor, right: Tensor, total: Tensor) -> Sequence[Tensor]:
    """The same of lefts [heads, lefts, positions, key_dim] with decays of each dimension.

    These are computed for pairs of positions within a block alone. Between blocks, each position
    has its decays since D of the first position of the later block, or until then, so no power is
    above 0.
    """
    found = lefts.new_zeros(*lefts.shape[:3], lefts.shape[2])
    for first in range(0, lefts.shape[2], BLOCK):
        rows, between = slice(first, first + BLOCK), total[:, first : first + 1]
        left, own = lefts[:, :, rows], total[:, rows]
        later = left * (own - between).exp_().unsqueeze(1)
        earlier = right[:, :, :first] * (between - total[:, :first]).exp_().unsqueeze(1)
        found[:, :, rows, :first] = later @ earlier.transpose(2, 3)
        inside = decays(own).mul_(right[:, :, rows])  # [heads, i, j, key_dim]
        found[:, :, rows, rows] = (left.transpose(1, 2) @ inside.transpose(2, 3)).transpose(1, 2)
    return found.unbind(1)


def decays(total: Tensor) -> Tensor:
    """exp(D[i] - D[j]) for j <= i, and 0 for others: [heads, i, j, 1 or key_dim]."""
    size = total.shape[1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu_(1)
    between = total.unsqueeze(2) - total.unsqueeze(1)
    return between.masked_fill_(later.unsqueeze(-1), float("-inf")).exp_()
