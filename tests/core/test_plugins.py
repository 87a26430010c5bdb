"""A library that is not installed is named, with what installs it."""

import json

import pytest

from paceline.core.errors import ConfigError
from paceline.core.plugins import library


def test_the_first_that_is_installed() -> None:
    assert library(("no_such_module", "json"), "nixl") is json
    with pytest.raises(ConfigError, match=r"no_such is not installed: pip install 'paceline\[a\]'"):
        library(("no_such",), "a")
