"""What an operator may choose about the server itself."""

from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import ConfigError

POSITIVE = ("body_bytes", "header_bytes", "body_s", "unread_s", "drain_s")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits are positive; without keys everybody is let in, without origins no web page is.

    api_keys         one of them is asked for, except on the probes and the metrics
    allowed_origins  web pages that may call from a browser; "*": all
    aliases          further names of the model
    body_bytes       largest body of a request
    header_bytes     largest head of a request, names and values together
    body_s           seconds within which each part of a body must come
    unread_s         seconds to leave a stream unread; within twice as many a client is dropped
    drain_s          seconds that running requests get when the server is told to end
    timeout_s        seconds that a request gets where it names no timeout; 0: no limit
    timings          are timings part of every response, or only of those that ask for them?
    log_format       lines of the log: text, or json, one object each
    otlp_endpoint    where spans go, one for each request; empty: nowhere
    """

    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    body_bytes: int = 4 * 2**20
    header_bytes: int = 32 * 2**10
    body_s: float = 30.0
    unread_s: float = 60.0
    drain_s: float = 30.0
    timeout_s: float = 0.0
    timings: bool = False
    log_format: Literal["text", "json"] = "text"
    otlp_endpoint: str = ""

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if not self.timeout_s >= 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; it cannot be negative")
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"log_format is {self.log_format!r}; choose one of text, json")
        where = self.otlp_endpoint
        if where and not where.startswith(("http://", "https://")):
            raise ConfigError(f"otlp_endpoint is {where!r}; it begins with http:// or https://")
        if not all(self.api_keys):
            raise ConfigError("an API key is empty")
