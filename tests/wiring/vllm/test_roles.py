"""A role is a connector with a part to play."""

import json
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.wiring.settings import sort_settings
from paceline.wiring.vllm.configs import with_role


@pytest.mark.parametrize(
    ("given", "connector", "kv_role"),
    [
        ({"role": "prefill"}, "nixl", "kv_producer"),
        ({"role": "decode"}, "nixl", "kv_consumer"),
        ({"role": "decode", "kv_connector": "a.B"}, "a.B", "kv_consumer"),
        (
            {"role": "decode", "kv_transfer_config": {"kv_connector": "a.B"}},
            "a.B",
            "kv_consumer",
        ),
    ],
)
def test_a_role_names_a_connector(given: dict[str, Any], connector: str, kv_role: str) -> None:
    _, own = sort_settings(given)
    assert own.kv_connector == connector
    assert json.loads(own.kv_transfer_config)["kv_role"] == kv_role


def test_options_are_kept() -> None:
    options = {"kv_connector_extra_config": {"lease_s": 5.0}}
    given = with_role({"role": "prefill", "kv_transfer_config": json.dumps(options)})
    assert json.loads(given["kv_transfer_config"])["kv_connector_extra_config"] == {"lease_s": 5.0}


def test_no_role_changes_nothing() -> None:
    assert with_role({"max_num_seqs": 4, "role": "both"}) == {"max_num_seqs": 4, "role": "both"}


def test_a_contradiction_is_named() -> None:
    with pytest.raises(ConfigError, match="role is 'decode', and kv_role is 'kv_producer'"):
        with_role({"role": "decode", "kv_transfer_config": {"kv_role": "kv_producer"}})
    with pytest.raises(ConfigError, match="role is 'middle'"):
        sort_settings({"role": "middle"})
