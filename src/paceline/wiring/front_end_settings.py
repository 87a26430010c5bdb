"""What a front end needs to know: the model, the settings, and what it shares with the others."""

from dataclasses import dataclass
from typing import Any

from paceline.core.config import LoadConfig
from paceline.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """Sent to the process, not written on its command line, where others could read the keys.

    model         what is served: a name, a path or a repository
    path          its files
    load          settings of loading
    server        settings of the server
    cache_labels  further labels of the metric cache_config_info
    given         settings of the engine, as they were given
    sockets       file descriptors of the sockets to accept connections at
    board         file descriptor of the figures of all processes
    row           of this process in them
    """

    model: str
    path: str
    load: LoadConfig
    server: ServerSettings
    cache_labels: dict[str, Any]
    given: dict[str, Any]
    sockets: tuple[int, ...]
    board: int
    row: int = 0
