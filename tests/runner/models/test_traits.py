import re
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.cuda.model import CUDA
from paceline.runner.layers.native_stack import NATIVE
from paceline.runner.models.architectures import dense
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.describe import describe
from paceline.runner.models.traits import architectures, find
from tests.conformance.architectures import Case

WIDTH = 64
# Defaults of transformers for Llama 4 do not match.
LLAMA4_TOWER = {"hidden_size": 768, "intermediate_size": 4 * 768, "vision_output_dim": 4096}
SMALL_IMAGES = {
    "mm_tokens_per_image": 4,
    "text_config": {"num_hidden_layers": 2},
    "vision_config": {"out_hidden_size": WIDTH, **LLAMA4_TOWER},
}


def test_traits_are_found_by_name() -> None:
    assert find("qwen3") is dense.ARCHITECTURES["qwen3"]


@pytest.mark.parametrize(
    "name", ["mamba", "config", "paceline.runner.models.architectures.dense", "dense", ""]
)
def test_an_architecture_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        find(name)


def test_the_guide_lists_every_architecture() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "models.md"
    listed = re.findall(r"^\| `(\w+)` \|", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(architectures())


@pytest.mark.parametrize("architecture", list(architectures()))
def test_the_guide_says_what_computes_an_architecture(architecture: str) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/models.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{architecture}` \|(.*)\|$", guide, re.MULTILINE)
    assert row is not None
    _, cpu, gpu, _, images, _ = (cell.strip() for cell in row[1].split(" | "))
    spec = describe(Case(architecture).config())
    assert cpu == ("C" if NATIVE.supports(spec) is None else "torch")
    assert gpu == ("yes" if CUDA.supports(spec) is None else "no")
    traits = find(architecture)
    expected = "yes" if traits.vision is not None else "no"
    if (part := traits.text_part) is not None:
        expected = "refused"
        if part.vision is not None:
            tower = part.vision(ConfigEntries(SMALL_IMAGES, "config.json"), WIDTH, {})
            is_computed = CUDA.supports(replace(spec, vision=tower)) is None
            expected = "yes" if is_computed else "on a CPU"
    assert images == expected
