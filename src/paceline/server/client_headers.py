"""The request id and the trace of a client, from the headers."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex

from paceline.core.errors import RequestError
from paceline.core.sampling import ServiceLevel

TENANT = "tenant"  # where the state of a request keeps the tenant of its API key
ID = "request_id"  # where the state of a request keeps its id
REQUEST_ID = re.compile(r"[!-~]{1,200}")
MOST_SESSION_ID = 256  # characters
TTFT_HEADER, ITL_HEADER = "x-slo-ttft-ms", "x-slo-itl-ms"
RANK = re.compile(r"[0-9]{1,9}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

ID_BYTES = 16
IDS_AT_ONCE = 256  # a system call for each would give the interpreter lock to other threads


drawn_ids: list[str] = []


def random_id() -> str:
    """A random id, on any thread."""
    while True:
        with suppress(IndexError):
            return drawn_ids.pop()
        drawn = token_hex(ID_BYTES * IDS_AT_ONCE)
        places = range(0, len(drawn), 2 * ID_BYTES)
        drawn_ids.extend(drawn[place : place + 2 * ID_BYTES] for place in places)


@dataclass(frozen=True, slots=True)
class ClientHeaders:
    """`request_id` is the client's own if it sent a valid one. Some clients send it in the body.
    `session_id` names the conversation, if the client does."""

    request_id: str
    traceparent: str = ""  # W3C trace context as it was sent; empty if missing or malformed
    load_format: str = ""  # of the load report in the response; empty: none
    rank: str = ""  # of the engine that the client chose, as it was sent
    session_id: str = ""
    targets: tuple[str, str] = ("", "")  # of the first token and between tokens, as they were sent

    @classmethod
    def of(
        cls,
        headers: Mapping[str, str],
        prefix: str,
        request_id: str | None = None,
        session_id: str | None = None,
        prompt_cache_key: str | None = None,
    ) -> "ClientHeaders":
        """Ids in the headers come before those of the body."""
        trace = headers.get("traceparent", "")
        name = sent_id(headers) or request_id or f"{prefix}-{random_id()}"
        load_format = headers.get("endpoint-load-metrics-format", "")
        rank = headers.get("x-data-parallel-rank", "")
        trace = trace if TRACEPARENT.match(trace) else ""
        session = headers.get("x-session-id") or session_id or prompt_cache_key or ""
        targets = headers.get(TTFT_HEADER, ""), headers.get(ITL_HEADER, "")
        return cls(name, trace, load_format.upper(), rank, session[:MOST_SESSION_ID], targets)

    def in_session(self, session_id: str) -> "ClientHeaders":
        return replace(self, session_id=session_id)

    @property
    def chosen_rank(self) -> int | None:
        """The engine that the client chose; RequestError if that is no number."""
        if not self.rank:
            return None
        if not RANK.fullmatch(self.rank.strip()):
            raise RequestError(
                f"data_parallel_rank: the header X-data-parallel-rank is {self.rank!r}; it must be "
                "the number of an engine, 0 for the first"
            )
        return int(self.rank)

    @property
    def level(self) -> ServiceLevel | None:
        """The targets of the client; None: there are none. RequestError if one is no number."""
        if not any(self.targets):
            return None
        found: list[float | None] = []
        for name, given in zip((TTFT_HEADER, ITL_HEADER), self.targets, strict=True):
            try:
                found.append(float(given) if given else None)
            except ValueError:
                raise RequestError(
                    f"slo: the header {name} is {given!r}; it must be a number of milliseconds"
                ) from None
        return ServiceLevel(*found)

    @property
    def trace_id(self) -> str:
        return self.traceparent.partition("-")[2].partition("-")[0]


def sent_id(headers: Mapping[str, str]) -> str:
    """The id of the client; empty if it is missing or cannot be sent back in a header."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else ""
