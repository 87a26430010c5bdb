"""What all models of an architecture have in common."""

from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import Activation


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What HF's files call the products of a mixture of experts.

    A router is `<block>.gate`, and a product of expert 3 is `<block>.experts.3.<gate, up or down>`.
    """

    block: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Traits:
    """How an architecture differs from the plain decoder: pre-norm, rotary, gated MLP.

    With `global_every` = n, layers n, 2n, … see the whole context and the others a window; 1 means
    that all see the whole context, 0 that none does. `local_theta` is the rotary base of layers
    with a window, if it differs.
    """

    activation: Activation = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False  # each head of queries and keys has a norm
    post_norms: bool = False  # attention and MLP have a norm before they are added
    norm_offset: float = 0.0  # a norm multiplies by its weight plus this
    scaled_embedding: bool = False  # times the square root of the width
    tied_embedding: bool = False  # unless the file says otherwise
    global_every: int = 1  # unless the file says otherwise
    local_theta: float | None = None  # unless the file says otherwise
    score_cap: float | None = None  # unless the file says otherwise
    logit_cap: float | None = None  # unless the file says otherwise
    experts: ExpertNames | None = None  # layers may be mixtures of experts
    shares_sum_to_one: bool = False  # of the chosen experts, unless the file says otherwise
    fused_products: bool = False  # queries, keys, values are one tensor, and so are gate and up
    paired_in_gguf: bool = False  # GGUF files store rows of q and k in rotary pairs

    def windows(
        self, layers: int, window: int | None, global_every: int | None = None
    ) -> tuple[int | None, ...]:
        """The window of each layer."""
        every = self.global_every if global_every is None else global_every
        every = every or layers + 1
        return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))


def find(architecture: str) -> Traits:
    """Find traits by the name of a module in `models`.

    The name comes from a file, which must not choose what is imported: a dotted path is refused.
    """
    if not architecture.isidentifier():
        raise unsupported(architecture)
    name = f"paceline.runner.models.{architecture}"
    try:
        traits = import_module(name).TRAITS
    except (ImportError, AttributeError):
        raise unsupported(architecture) from None
    if not isinstance(traits, Traits):
        raise ConfigError(f"{name}.TRAITS is not a Traits object")
    return traits


def architectures() -> list[str]:
    """The names of all architectures: the modules in `models` that have traits."""
    modules = (
        file for file in files("paceline.runner.models").iterdir() if file.name.endswith(".py")
    )
    return sorted(
        module.name.removesuffix(".py")
        for module in modules
        if "\nTRAITS = " in module.read_text(encoding="utf-8")
    )


def unsupported(architecture: str) -> ConfigError:
    known = ", ".join(architectures())
    return ConfigError(f"architecture {architecture!r} is not supported; supported are {known}")
