"""The same examples and the same numbers in every run: what fails is a change, not chance.

`--hypothesis-profile=default` draws new examples.
"""

import gc
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("same", derandomize=True)
        if not config.getoption("--hypothesis-profile", None):
            settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Imported modules stay: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
