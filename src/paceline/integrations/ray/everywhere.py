"""Requests on their way to a replica, or to all replicas with one response to the client."""

import re
from asyncio import Event
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import Message, Scope

from paceline.kv.keys import Keys, root_key

CONTROL = frozenset(
    {
        "/pause",
        "/resume",
        "/reset_prefix_cache",
        "/sleep",
        "/wake_up",
        "/update_weights",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
METRICS = "/metrics"
EXPLAIN = re.compile(r"/requests/.+/explain")
BLOCK_TOKENS = 16  # a block of text has 4 bytes for each, which is about a token of English
FIRST_BLOCKS = 128  # of a prompt, by which a replica is chosen
# What a replica needs to know of a request. The rest of a scope belongs to the process.
SENT = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
    *("root_path", "headers", "client", "server"),
)
NOTHING = msgspec.Raw(b"")
CHAIN = Keys(BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """What a replica responded."""

    replica: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Combination = Callable[[Sequence[WholeResponse]], WholeResponse]


def combination_for(path: str) -> Combination | None:
    """How the responses to a path become one; None if one replica is enough."""
    if path in CONTROL:
        return worst
    if path == METRICS:
        return merged
    return best if EXPLAIN.fullmatch(path) else None


def worst(responses: Sequence[WholeResponse]) -> WholeResponse:
    return max(responses, key=lambda one: one.status)


def best(responses: Sequence[WholeResponse]) -> WholeResponse:
    return min(responses, key=lambda one: one.status)


def merged(responses: Sequence[WholeResponse]) -> WholeResponse:
    """The metrics of all replicas, with the replica as a label."""
    registry = CollectorRegistry()
    registry.register(ReplicaMetrics(responses))
    body = generate_latest(registry)
    length = (b"content-length", b"%d" % len(body))
    first = worst(responses)
    headers = [one for one in first.headers if one[0].lower() != length[0]]
    return replace(first, headers=[*headers, length], body=body)


class ReplicaMetrics(Collector):
    """Metrics of all replicas; families of the same name are merged."""

    def __init__(self, responses: Sequence[WholeResponse]) -> None:
        self._families: dict[str, Metric] = {}
        for one in responses:
            for family in text_string_to_metric_families(one.body.decode()):
                samples = [
                    sample._replace(labels={**sample.labels, "replica": one.replica})
                    for sample in family.samples
                ]
                self._families.setdefault(family.name, empty(family)).samples += samples

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def empty(family: Metric) -> Metric:
    return Metric(family.name, family.documentation, family.type, family.unit)


class PromptFields(msgspec.Struct):
    """The fields of a body that a prompt is made from, in the order of most chat templates, as
    JSON. The other fields are not read."""

    model: msgspec.Raw = NOTHING
    cache_salt: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
    system: msgspec.Raw = NOTHING
    instructions: msgspec.Raw = NOTHING
    messages: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    input: msgspec.Raw = NOTHING

    @property
    def text(self) -> bytes:
        parts = (self.tools, self.system, self.instructions, self.messages, self.prompt, self.input)
        return b"".join(map(bytes, parts))


READER = msgspec.json.Decoder(PromptFields)


def prompt_keys(body: bytes) -> list[bytes]:
    """A key for each of the first blocks of a prompt; none for a body that is no JSON object.

    The replica has the tokenizer and the chat template, so blocks are of the bytes of the JSON.
    Requests with a common beginning have common keys if their client writes JSON in one way.
    """
    try:
        found = READER.decode(body)
    except msgspec.DecodeError:
        return []
    text, width = found.text[: FIRST_BLOCKS * CHAIN.width], CHAIN.width
    root = root_key(BLOCK_TOKENS, bytes(found.model).decode(), bytes(found.cache_salt).decode())
    return CHAIN.chain(root, text[: len(text) // width * width])


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """An HTTP request with its whole body. The router reads the keys."""

    keys: Sequence[bytes]
    scope: dict[str, Any]
    body: bytes

    @staticmethod
    def of(scope: Scope, body: bytes) -> "ForwardedRequest":
        kept = {name: scope[name] for name in SENT if name in scope}
        keys = prompt_keys(body) if scope["method"] == "POST" else ()
        return ForwardedRequest(keys, kept, body)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """The ASGI messages of a request: the body, and later the disconnect of the client."""

    body: bytes
    hung_up: Event = field(default_factory=Event)
    read: bool = False

    async def receive(self) -> Message:
        if not self.read:
            self.read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.hung_up.wait()
        return {"type": "http.disconnect"}
