"""Settings of adapters, and their names."""

from typing import Any

import pytest

from paceline.core.adapter import (
    AdapterConfig,
    LoRARequest,
    adapter_identity,
    adapter_name,
    adapter_version,
    parse_modules,
)
from paceline.core.errors import ConfigError


def test_modules_are_named_in_two_ways() -> None:
    found = parse_modules(["sql=adapters/a=b", '{"name": "code", "path": "adapters/c"}'])
    assert found == [LoRARequest("sql", 1, "adapters/a=b"), LoRARequest("code", 1, "adapters/c")]


@pytest.mark.parametrize("given", ["sql", "=path", "sql=", "{", '{"name": "sql"}', '{"name": 1}'])
def test_a_module_that_is_no_adapter_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="names no adapter; write NAME=PATH"):
        parse_modules([given])


def test_a_name_is_given_once() -> None:
    with pytest.raises(ConfigError, match="lora_modules names 'a' twice"):
        parse_modules(["a=x", "b=y", "a=z"])


def test_an_identity_has_a_name_and_a_version() -> None:
    identity = adapter_identity("team@sql", "1f")
    assert (adapter_name(identity), adapter_version(identity)) == ("team@sql", "1f")
    assert adapter_name("plain") == "plain"


def test_as_many_are_kept_as_may_run() -> None:
    assert AdapterConfig().kept(3) == 3
    assert AdapterConfig(max_cpu_loras=5).kept(3) == 5
    with pytest.raises(ConfigError, match=r"max_cpu_loras is 2; at least max_loras \(3\)"):
        AdapterConfig(max_cpu_loras=2).kept(3)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_lora_rank": 0}, "max_lora_rank"),
        ({"max_lora_rank": 513}, "max_lora_rank is 513; at most 512"),
        ({"max_cpu_loras": -1}, "max_cpu_loras"),
        ({"lora_modules": ("a=b",)}, "need enable_lora"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        AdapterConfig(**settings)
