from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.weights.files import open_checkpoint


@pytest.mark.parametrize("name", ["absent", "model.gguf"])
def test_a_path_that_holds_no_model(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} is neither a model folder"):
        open_checkpoint(tmp_path / name)


def test_each_kind_is_opened_by_its_reader(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    for name in ("model.gguf", "sha256-of-it"):
        (tmp_path / name).write_bytes(b"GGUF")
        with pytest.raises(ConfigError, match="cannot be read as GGUF"):
            open_checkpoint(tmp_path / name)
