"""The settings of connectors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Literal, get_args

from paceline.core.setting_checks import check_types, one_of, require

LoadFailurePolicy = Literal["recompute", "fail"]
ConnectorRole = Literal["kv_both", "kv_producer", "kv_consumer"]


def no_options() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LoadingConfig:
    """What becomes of a request whose KV a connector cannot load."""

    kv_load_failure_policy: LoadFailurePolicy = "recompute"  # "fail": it ends with an error
    kv_load_timeout_s: float = 30.0  # seconds to wait for KV before it is computed

    def __post_init__(self) -> None:
        check_types(self)
        one_of("kv_load_failure_policy", self.kv_load_failure_policy, get_args(LoadFailurePolicy))
        limit = self.kv_load_timeout_s
        require(0 < limit < inf, f"kv_load_timeout_s is {limit}; it must be positive and finite")


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """Which connector an engine has, in vLLM's names. The scheduler does not read it."""

    kv_connector: str = ""  # a module in kv/connectors, or a dotted path to a class; "": none
    kv_role: ConnectorRole = "kv_both"  # whether it stores KV (producer), loads it, or both
    engine_id: str = ""  # names this engine to others; "": the connector chooses a name
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=no_options)  # its options

    def __post_init__(self) -> None:
        check_types(self)
        one_of("kv_role", self.kv_role, get_args(ConnectorRole))
        given: Any = self.kv_connector_extra_config
        require(
            isinstance(given, Mapping),
            f"kv_connector_extra_config is {given!r:.200}; it maps names of options to values",
        )
        object.__setattr__(self, "kv_connector_extra_config", MappingProxyType(dict(given)))
