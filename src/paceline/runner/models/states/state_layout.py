"""Where the states of a sequence are among its bytes."""

from dataclasses import dataclass
from math import prod

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.states.state_sizes import StateTensor, StateUpdate

ALIGNED = 64  # bytes; each tensor begins at a multiple
RECURRENT_BYTES = 4  # of a number of a recurrent state


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The tensors of a state, one after another.

    tensors       by layer; none for layers without states
    value_bytes   of a number in tensors that are not recurrent
    update        of the recurrent state of each layer; None: see `StateSpec`
    """

    tensors: tuple[tuple[StateTensor, ...], ...]
    value_bytes: int
    update: StateUpdate | None = None

    @staticmethod
    def of(model: ModelConfig, value_bytes: int) -> "StateLayout | None":
        """None: the model has no states."""
        if model.states is None:
            return None
        states = [layer.state for layer in describe(model).layers]
        tensors = tuple(() if one is None else one.kept for one in states)
        update = next(one.update for one in states if one is not None)
        return StateLayout(tensors, value_bytes, update)

    @property
    def keeps_updates(self) -> bool:
        """Whether what a position does to a state can be kept, and done later."""
        is_recurrent = any(one.is_recurrent for layer in self.tensors for one in layer)
        return self.update is not None or not is_recurrent

    def bytes_of(self, tensor: StateTensor) -> int:
        each = RECURRENT_BYTES if tensor.is_recurrent else self.value_bytes
        return -(-prod(tensor.shape) * each // ALIGNED) * ALIGNED

    @property
    def bytes(self) -> int:
        """Of one sequence."""
        return sum(self.bytes_of(one) for layer in self.tensors for one in layer)
