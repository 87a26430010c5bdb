"""Which part of a model a rank holds, and which numbers of ranks a model can be divided among."""

from dataclasses import dataclass, replace

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.tensor_spec import Run

MOST_RANKS = 64  # that an error message suggests


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` equal parts of a model."""

    rank: int
    size: int

    def of(self, total: int) -> Run:
        """The part of `total` things that are divided among all ranks."""
        each = total // self.size
        return self.rank * each, (self.rank + 1) * each

    def of_kv_heads(self, total: int) -> Run:
        """The KV heads that the query heads of this rank read. If there are fewer than ranks,
        several ranks hold the same one."""
        if total >= self.size:
            return self.of(total)
        own = self.rank * total // self.size
        return own, own + 1

    def config(self, model: ModelConfig) -> ModelConfig:
        """The sizes of this part of a model."""
        first, end = self.of_kv_heads(model.kv_heads)
        return replace(
            model,
            heads=model.heads // self.size,
            kv_heads=end - first,
            mlp_width=model.mlp_width // self.size,
        )


def check_size(model: ModelConfig, size: int) -> None:
    """ConfigError if a model cannot be divided among so many ranks."""
    if reasons := unfit(model, size):
        fitting = [str(n) for n in range(1, MOST_RANKS + 1) if not unfit(model, n)]
        raise ConfigError(
            f"tensor_parallel_size is {size}, but {' and '.join(reasons)}; sizes that fit this "
            f"model are {', '.join(fitting)}"
        )


def unfit(model: ModelConfig, size: int) -> list[str]:
    """Why a model cannot be divided among so many ranks; empty if it can."""
    divided = {
        "attention heads": model.heads,
        "columns of the MLP": model.mlp_width,
        "token ids": model.vocab,
    }
    if model.experts is not None:
        divided["columns of an expert"] = model.experts.width
        if all(model.experts.layers):
            del divided["columns of the MLP"]
    found = [
        f"the model has {total} {name}, which is no multiple of it"
        for name, total in divided.items()
        if total % size
    ]
    if model.kv_heads % size and size % model.kv_heads:
        found.append(f"the model has {model.kv_heads} KV heads, no multiple and no divisor of it")
    return found
