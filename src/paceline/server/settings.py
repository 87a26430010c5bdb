"""Settings of the HTTP server."""

import re
from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import ConfigError
from paceline.core.settings.checks import not_negative, one_of, positive
from paceline.tools.registry import reasoning_parser, tool_parser

POSITIVE = (
    *("body_bytes", "body_values", "max_prompts", "header_bytes", "max_connections"),
    *("send_buffer_bytes", "head_s", "body_s", "idle_s", "unread_s"),
    *("max_stored_responses", "stored_response_bytes", "stored_response_s"),
    *("media_bytes", "media_s", "file_bytes", "files_bytes", "batch_concurrency"),
)
MOST_API_SERVERS = 256  # each is a process that takes some 80 MB
ROOT_PATH = re.compile(r"(/[^/?#\s]+)+")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits are positive. Without keys every client is accepted; without origins no web page is.

    Attributes:
        api_keys: Require this API key, except on probes and metrics; may be repeated.
            PACELINE_API_KEY sets it too, or several, separated by spaces.
        tenant_keys: Require this key or another one, and count the requests that bring it, and no
            others, to this tenant, whatever their field user says; NAME=KEY; may be repeated.
        allowed_origins: Origin of a web page that may call the server, or * for all; may be
            repeated.
        aliases: Another name of the model; may be repeated. The first one is in answers, lists and
            metrics.
        body_bytes: Maximum size of a request body.
        body_values (values): Maximum number of values in the JSON of a body: numbers, texts, lists,
            objects.
        max_prompts (prompts): Maximum number of prompts of a completion.
        header_bytes: Maximum size of the request headers, names and values together.
        max_connections (connections): Maximum number of open connections; beyond it, a new one
            replaces the one that has been without a request for longest.
        send_buffer_bytes: What the kernel buffers of a response before the server notices that the
            client does not read.
        head_s: Maximum time from the connection, or the first byte of a request, to the end of its
            headers.
        body_s: Maximum time between two parts of a request body.
        idle_s: Close a connection that has had no request for this time; longer than load balancers
            keep it, so that they close it first.
        unread_s: Drop a client that reads nothing of its response for this time.
        drain_s: Time that running requests get to finish when the server shuts down; 0: none.
        timeout_s: Timeout of requests that set none; 0: no limit.
        timings: Add timings to every response, not only to those of requests that ask for them.
        log_format: Format of log lines: text, or json with one object per line.
        docs: Serve a page that describes the API at /docs, without a key. Browsers load its scripts
            from a CDN.
        otlp_endpoint: Send one OpenTelemetry span per request to this URL, for example
            http://localhost:4318/v1/traces.
        api_server_count (processes): Processes that handle HTTP, tokens and text, in front of the
            engine process.
        tool_call_parser: Format of the model's tool calls: deepseek_v3, glm45, hermes, json,
            llama3_json, mistral, pythonic, qwen3_coder, or a dotted path to a class; auto: by the
            chat template; none: refuse tools.
        reasoning_parser: Format of the model's reasoning: deepseek_r1, mistral, qwen3, or a dotted
            path to a class; auto: by the chat template; none: leave it in the text.
        trust_request_chat_template: Let clients bring a chat template with a request. It is a
            program, which runs in a sandbox.
        enable_auto_tool_choice: Let the model choose whether it calls a tool. Otherwise only
            requests that require a call may have tools.
        allow_runtime_lora_updating: Let clients load adapters from any folder of this machine, and
            unload them: /v1/load_lora_adapter and /v1/unload_lora_adapter.
        allow_weight_updates: Let clients replace the weights of the model by those of any folder of
            this machine: /update_weights.
        allowed_media_domains: Host that images are fetched from, or * for every public one; may be
            repeated. Without it, images must be sent as data URLs.
        media_bytes: Maximum size of an image that is fetched.
        media_s: Maximum time to fetch an image.
        enable_request_id_headers: Send X-Request-Id with every response, also with those of probes
            and lists.
        enable_force_include_usage: Have the usage in every chunk of every stream, whatever its
            stream_options say.
        enable_per_request_metrics: Return the times of a request in the field metrics of its
            response; of a stream, with the usage.
        return_tokens_as_token_ids: Write the tokens of logprobs as token_id:ID, unless a request
            says otherwise.
        response_role: Role of the new messages of chats, as responses name it.
        enable_responses_store: Keep the responses of /v1/responses in memory, for
            previous_response_id and for clients that read them later.
        max_stored_responses (responses): Maximum number of stored responses and conversations; the
            oldest are forgotten first.
        stored_response_bytes: Maximum size of all stored responses and conversations together.
        stored_response_s: Time for which a response is stored.
        files_dir: Folder of /v1/files and /v1/batches, which are refused without one; batches of an
            earlier run continue.
        file_bytes: Largest file that is uploaded.
        files_bytes: Maximum size of all files together.
        batch_concurrency (requests): Maximum number of open requests of a batch.
        dashboard: Serve the live page at /dashboard: slots, blocks, the queue and step times.
        dashboard_show_prompts: Let the live page show the beginning of prompts, not only lengths.
        root_path: Path under which a proxy shows the server, such as /llm.
    """

    api_keys: tuple[str, ...] = ()
    tenant_keys: tuple[str, ...] = ()
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
    allow_weight_updates: bool = False
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
        positive(self, *POSITIVE)
        not_negative(self, "drain_s", "timeout_s", "api_server_count")
        if self.api_server_count > MOST_API_SERVERS:
            raise ConfigError(
                f"api_server_count is {self.api_server_count}; it can be {MOST_API_SERVERS} at most"
            )
        one_of("log_format", self.log_format, ("text", "json"))
        where = self.otlp_endpoint
        if where and not where.startswith(("http://", "https://")):
            raise ConfigError(f"otlp_endpoint is {where!r}; it must begin with http:// or https://")
        if self.root_path and not ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                f"root_path is {self.root_path!r}; it must begin with / and not end with /"
            )
        if not all(self.api_keys):
            raise ConfigError("an API key is empty; give at least one character, or no key")
        for pair in self.tenant_keys:
            name, _, key = pair.partition("=")
            if not (name and key):
                raise ConfigError("a tenant key is not NAME=KEY; give the tenant and its key")
        check_parsers(self.tool_call_parser, self.reasoning_parser)

    @property
    def keys_of_tenants(self) -> list[tuple[str, str]]:
        """The names of tenants, and their keys."""
        pairs = (pair.partition("=") for pair in self.tenant_keys)
        return [(name, key) for name, _, key in pairs]

    def tenant_without_key(self, name: str) -> str:
        """The tenant that a request names whose key says nothing: none that has a key."""
        has_key = bool(self.tenant_keys) and name in dict(self.keys_of_tenants)
        return "" if has_key else name

    @property
    def keys(self) -> list[str]:
        """Every key that a client may send."""
        return [*self.api_keys, *(key for _, key in self.keys_of_tenants)]


def check_parsers(calls: str, reasoning: str) -> None:
    """ConfigError if there are none of these names."""
    if calls != "none":
        tool_parser(calls)
    if reasoning != "none":
        reasoning_parser(reasoning)
