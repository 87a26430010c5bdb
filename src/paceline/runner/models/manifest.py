"""Names (of HF) and shapes of the tensors of a model."""

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.tensor_spec import Shape


def manifest(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of a model, in the order of computation."""
    return {tensor.name: tensor.shape for tensor in describe(config).tensors}
