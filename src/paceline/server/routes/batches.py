"""Routes of OpenAI's files and batches, for servers with a folder for them."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import httpx
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import FileResponse
from starlette.datastructures import UploadFile

from paceline.server.batches.batch_store import BatchRequest, BatchStore
from paceline.server.batches.file_store import FileStore
from paceline.server.body import check_values
from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, ERRORS, TOO_LARGE, ApiError, readable
from paceline.server.parse import check_text, unsupported
from paceline.server.routes.stored_responses import page
from paceline.server.schemas.constraints import REFUSED, RequestBody, Words, refused
from paceline.server.settings import ServerSettings

PURPOSES = ("batch",)
FIELDS = ("purpose", "file")
KEPT = "files are kept until they are deleted"
CHUNK = 1 << 20
WITHOUT_FOLDER = (
    "this server keeps no files; start it with --files-dir FOLDER, "
    "or answer a file with `paceline run-batch`"
)
Limit = Annotated[int, Query(ge=1, le=10_000)]
Order = Literal["asc", "desc"]


class BatchBody(RequestBody):
    """A batch to start."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: Words | None = None
    output_expires_after: Annotated[None, refused(KEPT), REFUSED] = None


def batch_routes(context: ServerContext) -> APIRouter:
    folder = context.settings.files_dir
    if not folder:
        return refusing_routes()
    files = FileStore(Path(folder) / "files", context.settings.files_bytes)
    width = context.settings.batch_concurrency
    check = partial(check_line, context.settings)
    batches = BatchStore(Path(folder) / "batches", files, width, context, check)

    @asynccontextmanager
    async def taking_over(app: FastAPI) -> AsyncGenerator[None]:
        batches.resume(partial(client_of, context, app))
        yield

    router = APIRouter(
        tags=["files and batches"],
        responses=ERRORS,
        route_class=context.body_route,
        lifespan=taking_over,
    )
    add_file_routes(router, files)
    add_batch_routes(router, context, batches)
    return router


def refusing_routes() -> APIRouter:
    """Say how to have files and batches."""
    router = APIRouter(tags=["files and batches"], responses=ERRORS)

    async def refuse() -> None:
        """Refused without --files-dir."""
        raise ApiError(BAD_REQUEST, WITHOUT_FOLDER, code="files_unavailable")

    for path in ("/v1/files", "/v1/batches"):
        router.add_api_route(path, refuse, methods=["GET"])
        router.add_api_route(path, refuse, methods=["POST"])
    return router


def add_file_routes(router: APIRouter, files: FileStore) -> None:
    @router.post("/v1/files")
    async def upload_file(request: Request) -> dict[str, Any]:
        """Store a file, sent as multipart/form-data with its purpose."""
        async with request.form(max_files=1, max_fields=8) as form:
            purpose, upload = form.get("purpose"), form.get("file")
            for name in form:
                if name not in FIELDS:
                    raise unsupported(name, f"it is not supported: {KEPT}")
            if purpose not in PURPOSES:
                problem = f"purpose is {purpose!r}; use one of {', '.join(PURPOSES)}"
                raise ApiError(BAD_REQUEST, problem, param="purpose")
            if not isinstance(upload, UploadFile):
                raise ApiError(BAD_REQUEST, "the form has no file", param="file")
            name = readable(upload.filename or "file.jsonl")
            return await asyncio.to_thread(files.add, name, str(purpose), chunks(upload.file))

    @router.get("/v1/files")
    async def list_files(
        purpose: str | None = None,
        limit: Limit = 10_000,
        order: Order = "desc",
        after: str | None = None,
    ) -> dict[str, Any]:
        stored = await asyncio.to_thread(files.all)
        found = [one for one in stored if purpose in (None, one["purpose"])]
        return page(found if order == "asc" else found[::-1], limit, after)

    @router.get("/v1/files/{file_id}")
    async def describe_file(file_id: str) -> dict[str, Any]:
        return files.get(file_id)

    @router.get("/v1/files/{file_id}/content", response_class=FileResponse)
    async def read_file(file_id: str) -> FileResponse:
        files.get(file_id)
        return FileResponse(files.path(file_id), media_type="application/octet-stream")

    @router.delete("/v1/files/{file_id}")
    async def delete_file(file_id: str) -> dict[str, Any]:
        files.remove(file_id)
        return {"id": file_id, "object": "file", "deleted": True}


def add_batch_routes(router: APIRouter, context: ServerContext, batches: BatchStore) -> None:
    @router.post("/v1/batches")
    async def create_batch(body: BatchBody, request: Request) -> dict[str, Any]:
        """Answer a file of requests in the background."""
        context.check_open()
        check_text("metadata", body.metadata)
        asked = BatchRequest(
            body.input_file_id, body.endpoint, body.completion_window, body.metadata or {}
        )
        return batches.create(asked, partial(client_of, context, request.app))

    @router.get("/v1/batches")
    async def list_batches(limit: Limit = 20, after: str | None = None) -> dict[str, Any]:
        return page((await asyncio.to_thread(batches.all))[::-1], limit, after)

    @router.get("/v1/batches/{batch_id}")
    async def describe_batch(batch_id: str) -> dict[str, Any]:
        return batches.get(batch_id)

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(batch_id: str) -> dict[str, Any]:
        """Send no further lines; those that are open are answered."""
        return batches.cancel(batch_id)


def check_line(settings: ServerSettings, line: bytes) -> None:
    """Refuse a line of a batch that no route would take as a body, before it is parsed."""
    if len(line) > settings.body_bytes:
        raise ApiError(TOO_LARGE, f"more than {settings.body_bytes} bytes (body_bytes)")
    check_values(line, settings.body_values)


def client_of(context: ServerContext, app: FastAPI) -> httpx.AsyncClient:
    """A client of this server, within its process."""
    keys = context.settings.keys
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://batch",
        headers={"Authorization": f"Bearer {keys[0]}"} if keys else {},
        timeout=None,
    )


def chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
