import re
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.models.architectures import dense
from paceline.runner.models.traits import architectures, find


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
