"""The whole surface against its own OpenAPI document, with requests nobody thought of."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from schemathesis.specs.openapi.schemas import OpenApiSchema  # not later, beside a server's thread

from tests.server.support import Site, served

EXAMPLES = 5
CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]
LEFT_OUT = {"/pause"}  # whoever pauses the engine waits for ever
ROUTES = {
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/input_items",
    "/v1/responses/{response_id}/cancel",
    "/v1/responses/input_tokens",
    "/v1/responses/compact",
    "/v1/conversations",
    "/v1/conversations/{conversation_id}",
    "/v1/conversations/{conversation_id}/items",
    "/v1/conversations/{conversation_id}/items/{item_id}",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/models/{name}",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
    "/health",
    "/ready",
    "/readyz",
    "/",
    "/v1/files",
    "/v1/batches",
    "/start_profile",
    "/stop_profile",
    "/reset_mm_cache",
    "/metrics",
    "/version",
    "/load",
    "/ping",
    "/invocations",
    "/server_info",
    "/tokenizer_info",
    "/pause",
    "/is_paused",
    "/resume",
    "/reset_prefix_cache",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/weight_version",
    "/abort_requests",
    "/requests/{request_id}/explain",
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server on a thread of its own, for clients that block."""
    found: list[Site] = []
    ready, done = threading.Event(), asyncio.Event()

    async def run() -> None:
        async with served() as one:
            found.append(one)
            ready.set()
            await done.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    loop.call_soon_threadsafe(done.set)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def operations(site: Site) -> list[schemathesis.APIOperation]:
    schema: OpenApiSchema = schemathesis.openapi.from_url(f"{site.url}/openapi.json")
    return [found.ok() for found in schema.get_all_operations()]


def test_every_route_is_documented(operations: list[schemathesis.APIOperation]) -> None:
    assert {operation.path for operation in operations} == ROUTES


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_breaks_the_server(
    operations: list[schemathesis.APIOperation], mode: GenerationMode
) -> None:
    tried = 0
    for operation in operations:
        if operation.path in LEFT_OUT or (mode.is_negative and not len(operation.body)):
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            nonlocal tried
            case.call_and_validate(checks=CHECKS)
            tried += 1

        check()
    assert tried > EXAMPLES
