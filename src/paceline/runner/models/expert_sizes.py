"""The sizes of mixtures of experts."""

from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import ClampedGate


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Of layers that are mixtures of experts.

    count              experts of a layer
    chosen             experts that compute a position
    width              inside an expert
    shares_sum_to_one  shares of the chosen experts are divided by their sum
    layers             whether each layer is a mixture; the others have a plain MLP
    clamp              what experts compute of gate and up, if not activation(gate) * up
    """

    count: int
    chosen: int
    width: int
    shares_sum_to_one: bool
    layers: tuple[bool, ...]
    clamp: ClampedGate | None = None

    def __post_init__(self) -> None:
        if not 0 < self.chosen <= self.count:
            raise ConfigError(
                f"a position must choose between 1 and all {self.count} experts, not {self.chosen}"
            )
        if self.width < 1:
            raise ConfigError(f"the width of experts must be positive, not {self.width}")
