"""One tiny model and one server for all commands that leave no trace on them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import serving
from tests.golden.small_model import small_model
from tests.server.support import Site


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(Path(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site
