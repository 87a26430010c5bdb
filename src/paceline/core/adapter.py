"""Settings of adapters, and how an adapter is identified."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.settings.checks import check_types, not_negative, positive, require

MOST_RANK = 512  # a larger rank is no low-rank adapter


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """LoRA adapters. How many may run at once is `max_loras` of the scheduler.

    Attributes:
        enable_lora: Serve LoRA adapters in PEFT's format.
        lora_modules: Adapter to load at start, as NAME=PATH or as JSON with name and path; may be
            repeated.
        max_lora_rank (rank): Largest rank of an adapter.
        max_cpu_loras (adapters): Maximum number of adapters in host memory; further ones are read
            again when they are needed; 0: max_loras.
    """

    enable_lora: bool = False
    lora_modules: tuple[str, ...] = ()
    max_lora_rank: int = 16
    max_cpu_loras: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "max_lora_rank")
        not_negative(self, "max_cpu_loras")
        require(
            self.max_lora_rank <= MOST_RANK,
            f"max_lora_rank is {self.max_lora_rank}; at most {MOST_RANK}",
        )
        require(
            self.enable_lora or not self.lora_modules,
            "lora_modules are adapters, which need enable_lora",
        )

    def kept(self, max_loras: int) -> int:
        """Adapters in host memory, of which `max_loras` may run at once."""
        most = self.max_cpu_loras or max_loras
        require(
            most >= max_loras,
            f"max_cpu_loras is {most}; at least max_loras ({max_loras}) are needed",
        )
        return most


NO_ADAPTERS = AdapterConfig()


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by its name and its files.

    ```py
    LoRARequest("sql", 1, "adapters/sql")
    ```

    Attributes:
        lora_name: The name under which it is loaded.
        lora_int_id: vLLM's number of the adapter; the name alone identifies it here.
        lora_path: The folder with PEFT's files.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""


def adapter_identity(name: str, version: str) -> str:
    """What requests carry: another content under the same name is another adapter."""
    return f"{name}@{version}"


def adapter_name(identity: str) -> str:
    return identity.rpartition("@")[0] or identity


def adapter_version(identity: str) -> str:
    return identity.rpartition("@")[2]


def parse_modules(given: Iterable[str]) -> list[LoRARequest]:
    """Adapters as NAME=PATH, or as JSON: {"name": ..., "path": ...}. ConfigError if one is
    malformed or named twice."""
    found = [_module(one) for one in given]
    for place, one in enumerate(found):
        if one.lora_name in [earlier.lora_name for earlier in found[:place]]:
            raise ConfigError(f"lora_modules names {one.lora_name!r} twice")
    return found


def _module(given: str) -> LoRARequest:
    name, path = "", ""
    if given.lstrip().startswith("{"):
        try:
            fields: Any = json.loads(given)
            name, path = fields.get("name"), fields.get("path")
        except ValueError:
            pass
    else:
        name, _, path = given.partition("=")
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ConfigError(
            f'{given!r} names no adapter; write NAME=PATH, or {{"name": NAME, "path": PATH}}'
        )
    return LoRARequest(name, 1, path)
