"""The shape of a model, for tests of whole servers."""

from pathlib import Path

import pytest

from tests.wiring.support import dummy_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dummy_model(tmp_path_factory.mktemp("dummy"))
