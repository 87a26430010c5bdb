"""The port of connectors: how one is found, and what it says of its options."""

from collections.abc import Sequence

import pytest

from paceline.core.errors import ConfigError
from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig, LoadingConfig
from paceline.kv import connector as port
from paceline.kv.connector import Connector, Transfer, TransferEnd, options
from paceline.kv.fence import TransferTicket

REQUEST = Request(id="a", prompt=[1, 2, 3], max_tokens=1)


class Attic(Connector):
    """Ends every transfer at once."""

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        self.size = options(config, shelves=2, deep=False, height_m=2.0)
        self._ended: list[TransferEnd] = []

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        return len(keys) - have

    def fetch(self, transfer: Transfer) -> None:
        self._ended.append(TransferEnd(transfer.ticket, 0, "it is empty"))

    def store(self, transfer: Transfer) -> None:
        self._ended.append(TransferEnd(transfer.ticket))

    def poll(self) -> Sequence[TransferEnd]:
        ended, self._ended = self._ended, []
        return ended


def attic(**extra: object) -> ConnectorConfig:
    return ConnectorConfig(f"{__name__}.Attic", kv_connector_extra_config=extra)


def test_a_connector_is_found_by_its_dotted_path() -> None:
    made = port.load(attic(shelves=5))
    assert isinstance(made, Attic)
    assert made.size == {"shelves": 5, "deep": False, "height_m": 2.0}


def test_what_a_connector_does_not_define_does_nothing() -> None:
    made = port.load(attic())
    transfer = Transfer(TransferTicket(7), REQUEST, 0, (b"k",), (3,))
    assert made.keep([b"k"]) == 0
    assert made.finished(transfer, Finish.LENGTH) is None
    made.forget([b"k"])
    made.clear()
    made.close()
    made.store(transfer)
    assert [*made.poll()] == [TransferEnd(TransferTicket(7))]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ConnectorConfig("cellar"), "no kv_connector 'cellar'"),
        (attic(rooms=1), "has no option 'rooms': it has shelves, deep, height_m"),
        (attic(shelves="many"), "shelves is 'many'; it must be of type int"),
        (attic(deep=1), "deep is 1; it must be of type bool"),
        (attic(shelves=-1), "shelves is -1; it must be finite and not negative"),
        (attic(height_m=float("nan")), "height_m is nan; it must be finite"),
    ],
)
def test_a_wrong_setting_is_named(config: ConnectorConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        port.load(config)


def test_roles_and_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="kv_role is 'both'"):
        ConnectorConfig(kv_role="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="maps names of options"):
        ConnectorConfig(kv_connector_extra_config=[])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="kv_load_timeout_s"):
        LoadingConfig(kv_load_timeout_s=0.0)
    with pytest.raises(ConfigError, match="kv_load_failure_policy is 'wait'"):
        LoadingConfig(kv_load_failure_policy="wait")  # pyright: ignore[reportArgumentType]
