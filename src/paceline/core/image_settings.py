"""Reads how the images of a model are prepared."""

from pathlib import Path
from typing import Any, cast

from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object

OWN, OF_ALL = "preprocessor_config.json", "processor_config.json"


def image_settings(folder: Path) -> dict[str, Any]:
    """The settings of the image processor in HF's layout; empty if the folder has none.

    Newer files have one file for all processors of a model.
    """
    if (folder / OWN).is_file():
        return json_object(folder / OWN)
    if not (folder / OF_ALL).is_file():
        return {}
    found: Any = json_object(folder / OF_ALL).get("image_processor", {})
    if not isinstance(found, dict):
        raise ConfigError(f"{folder / OF_ALL}: image_processor is no object")
    return cast("dict[str, Any]", found)
