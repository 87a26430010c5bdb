"""What each weight format costs on real weights: SmolLM2, quantized to it, on a short text.

The model is fetched as `paceline serve` fetches it, once for each cache folder.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.settings.load import LoadConfig
from paceline.hub.repository_files import silent
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import manifest
from paceline.runner.models.model import Model
from paceline.runner.models.tensor_spec import Shape
from paceline.runner.native.library import is_available
from paceline.runner.weights import weight_format
from paceline.wiring.model import find_model
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.weights.quantized_checkpoints import KINDS, Kind

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

NOISE = 0.01  # by chance, rounded weights may suit a text better
TEXT = """
The harbour of the town lies on the north side of the river, where the water is deep enough for
large ships. In summer most of the boats belong to people who fish for a living, and they leave
before the sun is up. They return in the afternoon, when the market is full, and sell what they have
caught. In winter the wind comes from the sea and few of them go out. Then they mend their nets,
paint their boats and tell each other stories about storms that nobody else remembers. An old man
who had worked on the lighthouse for forty years once said that the sea is like a neighbour: you
should be polite to it, and you should never believe that you know it. The children of the town
learn to swim before they learn to read. At school they draw maps of the coast, and the teacher asks
them to mark the rocks, because one day they will have to find their way home in the fog.
"""


@dataclass
class Requantized:
    """The weights of a model in a format, as published checkpoints have them. Those of one linear
    are quantized at a time."""

    config: ModelConfig
    plain: dict[str, Tensor]
    kind: Kind | None
    files: tuple[Path, ...] = ()
    written: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def is_quantized(self) -> bool:
        return self.kind is not None

    @property
    def shapes(self) -> dict[str, Shape]:
        return manifest(self.config)

    def read(self, name: str) -> Tensor:
        stem = name.rpartition(".")[0]
        is_plain = not stem.endswith("_proj") or self.config.quantization.format_of(stem) is None
        if self.kind is None or is_plain:
            return self.plain[name]
        if name not in self.written:
            found, _ = self.kind.write(self.plain[f"{stem}.weight"])
            self.written = {f"{stem}.{ending}": tensor for ending, tensor in found.items()}
        return self.written[name]


@dataclass(frozen=True)
class Real:
    config: ModelConfig
    plain: dict[str, Tensor]
    tokens: list[int]

    def perplexity(self, config: ModelConfig, kind: Kind | None, weights: str = "int8") -> float:
        model = Model.load(Requantized(config, self.plain, kind), weights=weights)
        logits = logits_of(OnCPU(model, "native"), self.tokens)
        due = torch.tensor(self.tokens[1:])
        return float(F.cross_entropy(logits[:-1], due).exp())


@pytest.fixture(scope="module")
def real() -> Real:
    source = find_model("smollm2", LoadConfig(), "cpu", silent)
    checkpoint = source.checkpoint
    plain = {name: checkpoint.read(name).float() for name in checkpoint.shapes}
    return Real(checkpoint.config, plain, source.tokenizer.encode(" ".join(TEXT.split())))


@pytest.fixture(scope="module")
def best(real: Real) -> float:
    """That of the weights as they are, in float32."""
    return real.perplexity(real.config, None, "float32")


# The most that perplexity may grow by, as a factor. Formats without a kind are made while plain
# weights load. Codes of 4 bits in groups of 32 lose more with one scale, since their weights had 4
# bits before, in other steps.
BOUNDS: dict[str, float] = {
    "int8": 1.02,
    "fp8": 1.07,
    "int4": 1.2,
    "fp8 by tensors": 1.04,
    "compressed int8": 1.03,
    "compressed int4": 1.3,
    "gptq with act order": 1.25,
    "awq": 1.28,
}


@pytest.mark.parametrize(("name", "bound"), BOUNDS.items(), ids=str)
def test_perplexity_grows_by_no_more_than_the_bound(
    real: Real, best: float, name: str, bound: float
) -> None:
    kind = KINDS.get(name)
    if kind is None:
        config = real.config.loaded_as(name)
    else:
        method = str(kind.config["quant_method"]).replace("-", "_")
        formats = weight_format.load(method).of_config(kind.config)
        config = replace(real.config, quantization=formats)
    found = real.perplexity(config, kind) / best
    assert 1 - NOISE < found < bound


def test_the_text_tells_good_weights_from_bad_ones(real: Real, best: float) -> None:
    """Weights of half the size are as wrong as scales that are misread."""
    assert 10 < best < 25
    halved = {name: one / 2 if "mlp.up" in name else one for name, one in real.plain.items()}
    assert replace(real, plain=halved).perplexity(real.config, None) > 2 * best
