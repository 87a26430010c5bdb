"""Settings of the HTTP server."""

import re
from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import ConfigError
from paceline.tools.registry import reasoning_parser, tool_parser

POSITIVE = (
    *("body_bytes", "body_values", "max_prompts", "header_bytes", "max_connections"),
    *("send_buffer_bytes", "head_s", "body_s", "idle_s", "unread_s"),
    *("max_stored_responses", "stored_response_bytes", "stored_response_s"),
    *("media_bytes", "media_s", "file_bytes", "files_bytes", "batch_concurrency"),
)
MOST_API_SERVERS = 256  # each is a process that takes some 80 MB
ROOT_PATH = re.compile(r"(/[^/?#\s]+)+")
NOT_NEGATIVE = ("drain_s", "timeout_s", "api_server_count")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits are positive. Without keys every client is accepted; without origins no web page is.

    api_keys         keys that clients send, one of them; probes and metrics need none
    allowed_origins  web pages that may call from a browser; "*": all
    aliases          further names of the model
    body_bytes       largest body of a request
    body_values      most values in the JSON of a body: numbers, texts, lists, objects
    max_prompts      most prompts of a completion
    header_bytes     most bytes of the headers of a request, names and values
    max_connections  most open connections; new ones replace those without a request
    send_buffer_bytes  what the kernel buffers of a response; the client has buffers of its own
    head_s           seconds within which the head of a request must arrive
    body_s           seconds within which each part of a body must arrive
    idle_s           seconds for which a connection without a request is kept
    unread_s         seconds after which a client is dropped if it does not read its response
    drain_s          seconds that open requests have to finish after a signal; 0: end them at once
    timeout_s        timeout of requests without one, in seconds; 0: none
    timings          return timings in every response, not only on request
    log_format       lines of the log: text, or json with one object per line
    docs             serve a page that describes the API at /docs, to clients without a key too
    otlp_endpoint    where the span of each request is sent; empty: nowhere
    api_server_count  processes that handle HTTP and text; 0: by the cores
    tool_call_parser  the format of the model's tool calls; auto: by its chat template; none: tools
                      are refused
    reasoning_parser  the format of the model's reasoning; auto: by its chat template; none:
                      reasoning stays in the text
    trust_request_chat_template  let clients bring a chat template with a request
    enable_auto_tool_choice  let the model choose whether it calls a tool
    allow_runtime_lora_updating  let clients load adapters from folders of this machine
    allowed_media_domains  hosts that images are fetched from; "*": all that are public; none:
                      images come as data URLs alone
    media_bytes      largest image that is fetched
    media_s          seconds within which an image must arrive
    enable_request_id_headers  send X-Request-Id with every response, not only with answers
    enable_force_include_usage  have the usage in every chunk of every stream
    enable_per_request_metrics  have the times of a request in its response
    return_tokens_as_token_ids  write the tokens of logprobs as token_id:ID, if the request does not
                      say how
    response_role    role of new messages of chats
    enable_responses_store  keep responses of /v1/responses
    max_stored_responses  most responses that are kept
    stored_response_bytes  most bytes of all of them
    stored_response_s  seconds for which one is kept
    files_dir        folder for /v1/files and /v1/batches; empty: these routes are refused
    file_bytes       largest file that is uploaded
    files_bytes      most bytes of all files together
    batch_concurrency  most requests of a batch that are open at once
    dashboard        serve the live page at /dashboard
    dashboard_show_prompts  let the page show the beginning of prompts, not only their lengths
    root_path        path under which a proxy shows the server; empty: none
    """

    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    body_bytes: int = 4 * 2**20
    body_values: int = 2**18
    max_prompts: int = 1024
    header_bytes: int = 32 * 2**10
    max_connections: int = 8192
    send_buffer_bytes: int = 64 * 2**10
    head_s: float = 30.0
    body_s: float = 30.0
    idle_s: float = 75.0
    unread_s: float = 60.0
    drain_s: float = 30.0
    timeout_s: float = 0.0
    timings: bool = False
    log_format: Literal["text", "json"] = "text"
    docs: bool = False
    otlp_endpoint: str = ""
    api_server_count: int = 0
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    trust_request_chat_template: bool = False
    enable_auto_tool_choice: bool = True
    allow_runtime_lora_updating: bool = False
    allowed_media_domains: tuple[str, ...] = ()
    media_bytes: int = 20 * 2**20
    media_s: float = 5.0
    enable_request_id_headers: bool = False
    enable_force_include_usage: bool = False
    enable_per_request_metrics: bool = False
    return_tokens_as_token_ids: bool = False
    response_role: str = "assistant"
    enable_responses_store: bool = True
    max_stored_responses: int = 1024
    stored_response_bytes: int = 64 * 2**20
    stored_response_s: float = 3600.0
    files_dir: str = ""
    file_bytes: int = 100 * 2**20
    files_bytes: int = 2**30
    batch_concurrency: int = 16
    dashboard: bool = False
    dashboard_show_prompts: bool = False
    root_path: str = ""

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        for name in NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it cannot be negative")
        if self.api_server_count > MOST_API_SERVERS:
            raise ConfigError(
                f"api_server_count is {self.api_server_count}; it can be {MOST_API_SERVERS} at most"
            )
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"log_format is {self.log_format!r}; choose one of text, json")
        where = self.otlp_endpoint
        if where and not where.startswith(("http://", "https://")):
            raise ConfigError(f"otlp_endpoint is {where!r}; it must begin with http:// or https://")
        if self.root_path and not ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                f"root_path is {self.root_path!r}; it must begin with / and not end with /"
            )
        if not all(self.api_keys):
            raise ConfigError("an API key is empty; give at least one character, or no key")
        check_parsers(self.tool_call_parser, self.reasoning_parser)


def check_parsers(calls: str, reasoning: str) -> None:
    """ConfigError if there are none of these names."""
    if calls != "none":
        tool_parser(calls)
    if reasoning != "none":
        reasoning_parser(reasoning)
