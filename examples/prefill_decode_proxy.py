"""A proxy that computes prompts on one engine and generates on another.

    paceline serve smollm2 --role prefill --port 8100
    paceline serve smollm2 --role decode --port 8200
    python examples/prefill_decode_proxy.py --prefill http://127.0.0.1:8100 \
        --decode http://127.0.0.1:8200 --port 8000

A request goes to a prefill engine first, for one token. The answer says where the KV of the prompt
is (`kv_transfer_params`); with it the request goes to a decode engine, which reads the KV and
generates. If no prefill engine answers with KV, the decode engine computes the prompt itself. If no
decode engine answers, the client gets 503. Engines of one kind take turns.
"""

import argparse
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

SERVER_ERROR = 500
CONNECT_S = 2.0
# What a prefill engine does not need: it generates one token, of one sequence.
GENERATION = (
    *("stream", "stream_options", "n", "best_of", "use_beam_search", "beam_width"),
    *("length_penalty", "early_stopping", "min_tokens", "max_completion_tokens"),
    *("logprobs", "top_logprobs", "logprob_token_ids", "return_token_ids"),
)
# Every position of these prompts has to be computed where the answer is written.
SCORED = ("prompt_logprobs", "echo")
FORWARDED = ("authorization", "x-request-id", "traceparent")


class Engines:
    """Engines of one kind, which take turns; one that does not answer is passed over."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=None)
        self.clients = [
            httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) for url in urls
        ]
        self._turns = count()

    async def send(
        self, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> httpx.Response | None:
        """The response of the first engine that answers, its body not yet read; None: none does."""
        first = next(self._turns)
        for place in range(len(self.clients)):
            client = self.clients[(first + place) % len(self.clients)]
            request = client.build_request("POST", path, json=body, headers=headers)
            try:
                response = await client.send(request, stream=True)
            except httpx.TransportError:
                continue
            if response.status_code < SERVER_ERROR:
                return response
            await response.aclose()
        return None

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


def create_proxy(
    prefill: Sequence[str], decode: Sequence[str], timeout_s: float = 600.0
) -> FastAPI:
    """The proxy as an ASGI application; `prefill` and `decode` are URLs of engines."""
    prefills, decodes = Engines(prefill, timeout_s), Engines(decode, timeout_s)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        yield
        await prefills.close()
        await decodes.close()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def generate(request: Request) -> Response:
        try:
            body, path = await request.json(), request.url.path
            body.pop("kv_transfer_params", None)  # no client says where engines read
        except (ValueError, AttributeError, TypeError):
            return failure(400, "the body must be a JSON object", "invalid_request_error")
        headers = forwarded(request)
        params = await transferred(prefills, path, body, headers)
        return await decoded(decodes, path, {**body, **params}, headers)

    @app.get("/v1/models")
    @app.get("/health")
    async def ask(request: Request) -> Response:
        for client in decodes.clients:
            try:
                answer = await client.get(request.url.path, headers=forwarded(request))
            except httpx.TransportError:
                continue
            kind = answer.headers.get("content-type")
            return Response(answer.content, answer.status_code, media_type=kind)
        return failure(503, "no decode engine answers")

    return app


async def transferred(
    prefills: Engines, path: str, body: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    """Compute the prompt on a prefill engine. Returns the field that says where its KV is; empty if
    there is none. A decode engine then computes the prompt, or says what is wrong with it."""
    if not prefills.clients or any(body.get(name) for name in SCORED):
        return {}
    asked = {name: value for name, value in body.items() if name not in GENERATION}
    asked |= {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    answer = await prefills.send(path, asked, headers)
    if answer is None:
        return {}
    try:
        content = await answer.aread()
    except httpx.TransportError:  # it died after the headers
        return {}
    finally:
        await answer.aclose()
    if answer.is_error:  # it is full, or a request with several prompts has no one place for KV
        return {}
    params = json.loads(content).get("kv_transfer_params")
    return {"kv_transfer_params": params} if params else {}


async def decoded(
    decodes: Engines, path: str, body: dict[str, Any], headers: dict[str, str]
) -> Response:
    """The answer of a decode engine."""
    answer = await decodes.send(path, body, headers)
    if answer is None:
        return failure(503, "no decode engine answers; try again later")
    kind = answer.headers.get("content-type")
    if body.get("stream") is True:
        return StreamingResponse(passed_on(answer), answer.status_code, media_type=kind)
    try:
        return Response(await answer.aread(), answer.status_code, media_type=kind)
    except httpx.TransportError as error:
        return failure(502, f"the decode engine was lost: {error}")
    finally:
        await answer.aclose()


async def passed_on(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The events of a stream. If the engine dies, an error is the last one."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx.TransportError as error:
        problem = {"message": f"the decode engine was lost: {error}", "type": "server_error"}
        yield b"\n\ndata: " + json.dumps({"error": problem}).encode() + b"\n\n"
    finally:
        await answer.aclose()


def forwarded(request: Request) -> dict[str, str]:
    """The headers that engines get too."""
    return {name: value for name, value in request.headers.items() if name in FORWARDED}


def failure(status: int, message: str, kind: str = "server_error") -> Response:
    return JSONResponse({"error": {"message": message, "type": kind}}, status)


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefill on one engine, decode on another.")
    parser.add_argument("--prefill", action="append", default=[], help="URL of a prefill engine")
    parser.add_argument("--decode", action="append", required=True, help="URL of a decode engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(create_proxy(given.prefill, given.decode), host=given.host, port=given.port)


if __name__ == "__main__":
    main()
