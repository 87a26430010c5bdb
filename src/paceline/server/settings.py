"""What an operator may choose about the server itself."""

from dataclasses import dataclass

from paceline.core.errors import ConfigError

POSITIVE = ("body_bytes", "header_bytes", "body_s", "stall_s", "drain_s")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits are positive; without keys everybody is let in, without origins no web page is.

    api_keys         one of them is asked for, except on the probes and the metrics
    allowed_origins  web pages that may call from a browser; "*": all
    aliases          further names of the model
    body_bytes       largest body of a request
    header_bytes     largest head of a request, names and values together
    body_s           seconds within which each part of a body must come
    stall_s          seconds to leave a stream unread; after twice as many a client is dropped
    drain_s          seconds that running requests get when the server is told to end
    timings          are timings part of every response, or only of those that ask for them?
    max_model_len    tokens that prompt and output may have together; 0: unknown
    """

    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    body_bytes: int = 16 * 2**20
    header_bytes: int = 32 * 2**10
    body_s: float = 30.0
    stall_s: float = 60.0
    drain_s: float = 30.0
    timings: bool = False
    max_model_len: int = 0

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if not all(self.api_keys):
            raise ConfigError("an API key is empty")
