"""Batches: each is a file of requests that the server answers in the background."""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from time import time
from typing import Any, Protocol
from uuid import uuid4

import httpx

from paceline.server.batches.batch_file import (
    REFUSED,
    URLS,
    BatchLine,
    BatchRun,
    BatchStopped,
    Results,
    entries,
    unchecked,
)
from paceline.server.batches.counts import Counts
from paceline.server.batches.file_store import Description, FileStore, read_json, write_json
from paceline.server.errors import BAD_REQUEST, NOT_FOUND, TOO_MANY, ApiError
from paceline.server.tasks import BackgroundTasks

log = logging.getLogger(__name__)

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
WINDOW_S = {"24h": 24 * 3600}
MOST_ERRORS = 100  # lines that a failed batch reports
MOST_RUNNING = 4  # batches of a process; others wait for one of them to end
MOST_OPEN = 256  # batches that wait or run
RETRY_S = 2.0  # after the engine refused a line, for example while it restarts
REPORTED_S = 1.0  # between two writes of the counts
OPEN = ("validating", "in_progress", "finalizing")
UNFINISHED = (*OPEN, "cancelling")
TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)
Batch = Description
Connect = Callable[[], httpx.AsyncClient]  # a client of the server itself


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a client asks for."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


class Availability(Protocol):
    """Whether the server takes requests."""

    @property
    def draining(self) -> bool: ...

    @property
    def closed(self) -> str | None:
        """Why it takes none; None if it does."""
        ...


class BatchStore:
    """Each batch is `ID.json` in the folder; `ID.results` has its answers so far, and `ID.cancel`
    is there once a client has cancelled it.

    The process that runs a batch holds a lock on `ID.lock`. If it dies, the next process that
    starts takes the batch over: lines that have an answer are not sent again.
    """

    def __init__(
        self,
        folder: Path,
        files: FileStore,
        width: int,
        availability: Availability,
        check: Callable[[bytes], None] = unchecked,
    ) -> None:
        """`width` bounds the open requests of a batch; `check` refuses lines that are too large."""
        self._folder, self._files, self._width = folder, files, width
        self._availability, self._check = availability, check
        self._running = asyncio.Semaphore(MOST_RUNNING)
        self._tasks = BackgroundTasks()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, asked: BatchRequest, connect: Connect) -> Batch:
        """Start a batch. 400 or 404 if what it names is not there, 429 if too many are open, and
        413 if there is no room for its output."""
        if asked.endpoint not in URLS:
            raise wrong("endpoint", asked.endpoint, URLS)
        if asked.completion_window not in WINDOW_S:
            raise wrong("completion_window", asked.completion_window, WINDOW_S)
        if self._files.get(asked.input_file_id)["purpose"] != "batch":
            problem = f"the file {asked.input_file_id!r} was not uploaded with purpose 'batch'"
            raise ApiError(BAD_REQUEST, problem, param="input_file_id")
        self._files.check_room()
        if sum(one["status"] in UNFINISHED for one in self.all()) >= MOST_OPEN:
            raise ApiError(TOO_MANY, f"{MOST_OPEN} batches are open; wait until some have ended")
        now = int(time())
        batch: Batch = {
            "id": f"batch_{uuid4().hex}",
            "object": "batch",
            "endpoint": asked.endpoint,
            "errors": None,
            "input_file_id": asked.input_file_id,
            "completion_window": asked.completion_window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + WINDOW_S[asked.completion_window],
            **dict.fromkeys(TIMES),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": dict(asked.metadata) or None,
        }
        self._write(batch)
        self._start(batch, connect)
        return batch

    def all(self) -> list[Batch]:
        """Every batch, oldest first."""
        found = [self._seen(read_json(path)) for path in self._folder.glob("batch_*.json")]
        return sorted(filter(None, found), key=lambda one: (one["created_at"], one["id"]))

    def get(self, batch_id: str) -> Batch:
        """404 if there is no such batch."""
        if BATCH_ID.fullmatch(batch_id) and (found := self._seen(read_json(self._at(batch_id)))):
            return found
        raise ApiError(NOT_FOUND, f"there is no batch {batch_id!r}", param="batch_id")

    def cancel(self, batch_id: str) -> Batch:
        """Send no further lines of a batch; open ones are answered. 400 if it has ended."""
        found = self.get(batch_id)
        if found["status"] not in UNFINISHED:
            problem = f"the batch has ended with the status {found['status']!r}"
            raise ApiError(BAD_REQUEST, problem, param="batch_id")
        self._at(batch_id, "cancel").touch()
        return self.get(batch_id)

    def resume(self, connect: Connect) -> None:
        """Take over batches whose process has died."""
        for batch in self.all():
            if batch["status"] in UNFINISHED:
                self._start(batch, connect)

    async def ended(self, batch_id: str) -> None:
        """Wait until this process does not run the batch."""
        await self._tasks.ended(batch_id)

    # -- files of a batch ------------------------------------------------------

    def _at(self, batch_id: str, suffix: str = "json") -> Path:
        return self._folder / f"{batch_id}.{suffix}"

    def _write(self, batch: Batch) -> None:
        write_json(self._at(batch["id"]), batch)

    def _seen(self, batch: Batch | None) -> Batch | None:
        """The batch as clients see it, which another process may have cancelled."""
        if batch and batch["status"] in OPEN and self._at(batch["id"], "cancel").exists():
            since = int(self._at(batch["id"], "cancel").stat().st_mtime)
            return {**batch, "status": "cancelling", "cancelling_at": since}
        return batch

    # -- running it ------------------------------------------------------------

    def _start(self, batch: Batch, connect: Connect) -> None:
        self._tasks.start(batch["id"], self._run(batch["id"], connect))

    async def _run(self, batch_id: str, connect: Connect) -> None:
        """Run a batch, unless another process does."""
        async with self._running:
            with self._at(batch_id, "lock").open("ab") as lock:
                try:
                    flock(lock, LOCK_EX | LOCK_NB)
                except BlockingIOError:
                    return
                batch = read_json(self._at(batch_id))
                if batch is not None and batch["status"] in OPEN:  # it has not ended meanwhile
                    await self._run_to_its_end(batch, connect)

    async def _run_to_its_end(self, batch: Batch, connect: Connect) -> None:
        try:
            while not await self._answered(batch, connect):
                await self._reopened()
                if self._availability.draining:
                    return  # the next process goes on
        except (OSError, ApiError) as error:  # such as a full disk, or a folder that is full
            log.error("%s failed: %s", batch["id"], error)
            self._end(batch, "failed", [{"code": "server_error", "message": str(error)}])

    async def _reopened(self) -> None:
        """Wait until the server takes requests again, or until it shuts down."""
        while not self._availability.draining:
            await asyncio.sleep(RETRY_S)
            if not self._availability.closed:
                return

    async def _answered(self, batch: Batch, connect: Connect) -> bool:
        """Answer a batch; False if the engine takes no requests at present."""
        try:
            await self._answer(batch, connect)
        except BatchStopped as error:
            log.warning("%s waits: %s", batch["id"], error)
            return False
        return True

    async def _answer(self, batch: Batch, connect: Connect) -> None:
        path = self._files.path(batch["input_file_id"])
        lines, problems = await asyncio.to_thread(
            checked, entries(path, self._check), batch["endpoint"]
        )
        batch["request_counts"]["total"] = lines
        if problems:
            self._end(batch, "failed", problems)
            return
        batch["status"] = "in_progress"
        batch["in_progress_at"] = batch["in_progress_at"] or int(time())
        self._write(batch)
        counts, written = Counts(), 0.0

        def report() -> None:
            nonlocal written
            if (now := time()) - written > REPORTED_S:
                written = now
                answered = counts.skipped + counts.answered
                batch["request_counts"] |= {"completed": answered, "failed": counts.refused}
                self._write(batch)

        async with connect() as http:
            answered = await asyncio.to_thread(Results, self._at(batch["id"], "results"))
            with answered as results:
                running = BatchRun(
                    http, results, self._width, counts, report, lambda: self._is_over(batch)
                )
                await running.run(self._wanted(batch, path))
        await self._finish(batch)

    def _wanted(self, batch: Batch, path: Path) -> Iterator[BatchLine]:
        """The lines, until the batch is cancelled or its time is over."""
        for line in entries(path, self._check):
            if self._is_over(batch):
                return
            yield line

    def _is_over(self, batch: Batch) -> bool:
        return time() >= batch["expires_at"] or self._at(batch["id"], "cancel").exists()

    async def _finish(self, batch: Batch) -> None:
        """Make files of the answers and of the errors."""
        batch |= {"status": "finalizing", "finalizing_at": int(time())}
        self._write(batch)
        results = self._at(batch["id"], "results")
        found = {
            "completed": await asyncio.to_thread(self._keep, batch, "output", results),
            "failed": await asyncio.to_thread(self._keep, batch, "error", results),
        }
        batch["request_counts"] |= found
        if sum(found.values()) == batch["request_counts"]["total"]:
            status = "completed"
        else:
            status = "cancelled" if self._at(batch["id"], "cancel").exists() else "expired"
        self._end(batch, status)

    def _keep(self, batch: Batch, kind: str, results: Path) -> int:
        """Make a file of the answers or of the errors, if there are any; returns how many."""
        fine = kind == "output"
        if lines := sum(1 for _ in answers(results, fine)):
            name = f"{batch['id']}_{kind}.jsonl"
            made = self._files.add(name, "batch_output", answers(results, fine), bounded=False)
            batch[f"{kind}_file_id"] = made["id"]
        return lines

    def _end(self, batch: Batch, status: str, problems: list[dict[str, Any]] | None = None) -> None:
        batch |= {"status": status, f"{status}_at": int(time())}
        if problems:
            batch["errors"] = {"object": "list", "data": problems}
        if (cancelled := self._at(batch["id"], "cancel")).exists():
            batch["cancelling_at"] = int(cancelled.stat().st_mtime)
        self._write(batch)
        kept = ("results",) if status == "failed" else ()  # what was computed before it failed
        for suffix in {"results", "cancel", "lock"}.difference(kept):
            self._at(batch["id"], suffix).unlink(missing_ok=True)


def checked(given: Iterator[BatchLine], endpoint: str) -> tuple[int, list[dict[str, Any]]]:
    """The number of lines of a file, and what is wrong with some of them."""
    lines, problems = 0, list[dict[str, Any]]()
    for entry in given:
        lines += 1
        problem = entry.complaint
        if not problem and entry.url != endpoint:
            problem = f"line {entry.number}: url is {entry.url!r}; the batch is for {endpoint!r}"
        if problem and len(problems) < MOST_ERRORS:
            error = {
                "code": "invalid_line",
                "line": entry.number,
                "message": problem,
                "param": None,
            }
            problems.append(error)
    if not lines:
        problems.append({"code": "empty_file", "line": None, "message": "the file has no lines"})
    return lines, problems


def answers(results: Path, fine: bool) -> Iterator[bytes]:
    """The lines of a file of results that are answers, or those that are errors."""
    with results.open("rb") as lines:
        for line in lines:
            response = json.loads(line)["response"]
            if (response is not None and response["status_code"] < REFUSED) == fine:
                yield line


def wrong(name: str, given: object, known: Any) -> ApiError:
    return ApiError(BAD_REQUEST, f"{name} is {given!r}; use one of {', '.join(known)}", param=name)
