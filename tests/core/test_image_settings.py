"""Where the settings of an image processor are found."""

import json
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.core.multimodal import OF_ALL, OWN, image_settings


def test_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    assert image_settings(tmp_path) == {}
    (tmp_path / OF_ALL).write_text(json.dumps({"image_processor": {"size": 1}}))
    assert image_settings(tmp_path) == {"size": 1}
    (tmp_path / OWN).write_text(json.dumps({"size": 2}))
    assert image_settings(tmp_path) == {"size": 2}


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / OF_ALL).write_text(json.dumps({"image_processor": "x"}))
    with pytest.raises(ConfigError, match="image_processor is no object"):
        image_settings(tmp_path)
