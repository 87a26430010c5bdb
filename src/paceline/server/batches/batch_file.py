"""OpenAI batch files: reads requests, and writes answers in the order in which they finish."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx

from paceline.core.errors import PacelineError
from paceline.server.batches.counts import Counts
from paceline.server.errors import ApiError

METHODS = ("POST",)
URLS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    *("/v1/embeddings", "/v1/score", "/v1/rerank"),
)
REFUSED, TOO_MANY, CLOSED = 400, 429, 503
DEFAULT_WAIT_S = 1.0
HEADERS = {"Content-Type": "application/json"}
BEGINNING = b'{"id": "batch_req_'  # of every line that is written


class BatchStopped(PacelineError):
    """The engine takes no more requests. A later run continues the output."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of the input; `complaint` says what is wrong with it, if something is. `body` is
    JSON: httpx refuses unpaired surrogates, which the route should judge."""

    number: int  # of the line, from 1
    custom_id: str | None
    url: str = ""
    body: str = ""
    complaint: str = ""

    @property
    def id(self) -> str:
        """The same in every run of the same file."""
        return f"batch_req_{self.number}"


# -- input ------------------------------------------------------------------


def unchecked(_line: bytes) -> None:
    """A line may have any size."""


def entries(path: Path, check: Callable[[bytes], None] = unchecked) -> Iterator[BatchLine]:
    """The lines of a file, one at a time, without empty ones. `check` raises an ApiError for one
    that is too large to be parsed."""
    seen: set[str] = set()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = parsed(number, line, check)
            if entry.custom_id in seen:
                # Named by its number, since its custom_id belongs to the other line.
                complaint = f"custom_id {entry.custom_id!r} was used on an earlier line"
                yield complaining(number, None, complaint)
                continue
            if entry.custom_id is not None:
                seen.add(entry.custom_id)
            yield entry


def count_lines(path: Path) -> int:
    """The number of lines that are not empty."""
    with path.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)


def parsed(number: int, line: bytes, check: Callable[[bytes], None]) -> BatchLine:
    try:
        check(line)
        found: Any = json.loads(line)
    except ApiError as error:
        return complaining(number, None, error.detail)
    except (ValueError, RecursionError) as error:
        return complaining(number, None, f"not JSON: {error}")
    if not isinstance(found, dict):
        return complaining(number, None, "not a JSON object")
    content = cast("dict[str, Any]", found)
    name = content.get("custom_id")
    if not isinstance(name, str) or not name:
        return complaining(number, None, "custom_id is missing or not a string")
    for key, accepted in (("method", METHODS), ("url", URLS)):
        if (given := content.get(key)) not in accepted:
            found = "missing" if given is None else repr(given)
            wanted = " or ".join(filter(None, (", ".join(accepted[:-1]), accepted[-1])))
            return complaining(number, name, f"{key} is {found}; it must be {wanted}")
    url, body = content["url"], content.get("body")
    if not isinstance(body, dict):
        return complaining(number, name, "body is missing or not a JSON object")
    if cast("dict[str, Any]", body).get("stream"):
        return complaining(number, name, "stream is set; a batch cannot stream")
    return BatchLine(number, name, url, json.dumps(body))


def complaining(number: int, custom_id: str | None, complaint: str) -> BatchLine:
    return BatchLine(number, custom_id, complaint=f"line {number}: {complaint}")


# -- output ----------------------------------------------------------------


def name_of(custom_id: str | None, own: str) -> tuple[str, bool]:
    """What identifies a line: its custom_id, or our id, which a custom_id may equal."""
    return (custom_id or own), bool(custom_id)


class Results:
    """The output file: complete lines only, and one for each custom_id.

    An existing file is continued. The last line of a killed run may be incomplete and is removed.
    A line of the input without a custom_id is identified by its number.
    """

    def __init__(self, path: Path) -> None:
        self._known: set[tuple[str, bool]] = set()
        if path.exists():
            with path.open("r+b") as there:
                there.truncate(self._read(there))
        self._out = path.open("ab")

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_error: object) -> None:
        self._out.close()

    def __contains__(self, entry: BatchLine) -> bool:
        return name_of(entry.custom_id, entry.id) in self._known

    def write(self, entry: BatchLine, response: dict[str, Any] | None) -> None:
        error = {"code": "invalid_line", "message": entry.complaint} if entry.complaint else None
        line = {
            "id": entry.id,
            "custom_id": entry.custom_id,
            "response": response,
            "error": error,
        }
        self._out.write(json.dumps(line).encode() + b"\n")
        self._out.flush()

    def _read(self, there: BinaryIO) -> int:
        """Read the lines of an earlier run; returns where the last complete line ends."""
        end = 0
        for line in there:
            try:
                found: Any = json.loads(line) if line.endswith(b"\n") else None
                self._known.add(name_of(found["custom_id"], found["id"]))
            except (ValueError, KeyError, TypeError):
                torn = not line.endswith(b"\n") and BEGINNING.startswith(line[: len(BEGINNING)])
                if there.read(1) or not torn:
                    problem = f"{there.name} is not the output of a batch: {line[:60]!r}"
                    raise BatchStopped(problem) from None
                break
            end += len(line)
        return end


# -- the work ---------------------------------------------------------------


class BatchRun:
    """At most `width` requests are open at once, and no more lines are in memory.

    Lines are read and parsed on a thread. `report` is called after each line has been counted. With
    `stopped`, others use the queue too: a full one is waited for, until `stopped` says that the
    batch has ended.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        results: Results,
        width: int,
        counts: Counts | None = None,
        report: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] | None = None,
    ) -> None:
        self._http, self._results, self._width = http, results, width
        self._report, self._stopped = report, stopped
        self._open = 0
        self._reading = asyncio.Lock()
        self._halted: BatchStopped | None = None
        self.counts = counts or Counts()

    async def run(self, lines: Iterator[BatchLine]) -> Counts:
        """Each worker takes the next line when it is free. When the engine takes no more, none
        takes another one, and what is open is answered: BatchStopped."""
        self._halted = None
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._width):
                    workers.create_task(self._work(lines))
        except BaseExceptionGroup as group:
            known, others = group.split(OSError)
            if known is None or others is not None:
                raise
            raise known.exceptions[0] from None
        if self._halted is not None:
            raise self._halted
        return self.counts

    async def _work(self, lines: Iterator[BatchLine]) -> None:
        while self._halted is None:
            async with self._reading:
                entry = await asyncio.to_thread(self._next, lines)
            if entry is not None and entry.complaint:
                self._results.write(entry, None)
                self.counts.bad += 1
            elif entry is not None and (response := await self._answer(entry)) is not None:
                self._results.write(entry, response)
                fine = response["status_code"] < REFUSED
                self.counts.answered += fine
                self.counts.refused += not fine
            self._report()
            if entry is None:
                return

    def _next(self, lines: Iterator[BatchLine]) -> BatchLine | None:
        """The next line that has no answer yet."""
        for entry in lines:
            if entry not in self._results:
                return entry
            self.counts.skipped += 1
        return None

    async def _answer(self, entry: BatchLine) -> dict[str, Any] | None:
        """The answer to a line; None if the run ends without it."""
        while True:
            self._open += 1
            try:
                answer = await self._http.post(entry.url, content=entry.body, headers=HEADERS)
            finally:
                self._open -= 1
            # A queue that is full while requests of ours are open will have room later.
            if answer.status_code != TOO_MANY or not (self._open or self._stopped):
                break
            if self._halted is not None or (self._stopped and self._stopped()):
                return self._halt("the batch has ended")
            await asyncio.sleep(float(answer.headers.get("retry-after", DEFAULT_WAIT_S)))
        if answer.status_code == CLOSED:
            return self._halt(f"the engine takes no requests: {answer.text}")
        if is_aborted(body := answer.json()):
            return self._halt("the request was aborted, for example by a shutdown")
        return {
            "status_code": answer.status_code,
            "request_id": answer.headers.get("x-request-id", ""),
            "body": body,
        }

    def _halt(self, why: str) -> None:
        """Let no worker take another line."""
        self._halted = self._halted or BatchStopped(why)


def is_aborted(body: Any) -> bool:
    """Whether an answer is the beginning of one alone."""
    found = cast("dict[str, Any]", body if isinstance(body, dict) else {})
    choices: list[dict[str, Any]] = found.get("choices") or []
    ends = [choice.get("finish_reason") for choice in choices]
    return "abort" in ends or found.get("status") == "cancelled"
