"""Reads logs of real requests: Azure's CSV, Mooncake's JSON lines, and lines of counts."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import Any, cast

from paceline.core.errors import ConfigError
from paceline.workloads.call import Call, Segment

HASHED_TOKENS = 512  # that one id of Mooncake's stands for
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
NS, MS = 1e-9, 1e-3

Row = dict[str, Any]


def read(path: Path, count: int | None = None) -> list[Call]:
    """The first calls of a trace, in order, the first of them at 0 seconds."""
    found = list(islice(calls(path), count))
    if not found:
        raise ConfigError(f"{path}: no requests in it")
    begun = min(call.at_s for call in found)
    moved = [replace(call, at_s=call.at_s - begun) for call in found]
    return sorted(moved, key=lambda call: call.at_s)


def calls(path: Path) -> Iterator[Call]:
    """One after the other, with the times of the file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for number, row in rows(lines, path):
                try:
                    yield checked(reader_of(row)(number, row))
                except KeyError as error:
                    raise ConfigError(f"{path}: line {number}: no field {error}") from None
                except (OverflowError, TypeError, ValueError) as error:
                    raise ConfigError(f"{path}: line {number}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def rows(lines: Iterator[str], path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a table or of lines of JSON, with the numbers of their lines."""
    first = next(lines, "")
    if first.startswith(AZURE[0]):
        yield from enumerate(csv.DictReader(lines, first.strip().split(",")), 2)
        return
    for number, line in enumerate(chain([first], lines), 1):
        if line.strip():
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{path}: line {number}: not JSON: {error}; a trace is lines of JSON, or a "
                    f"table that begins with {','.join(AZURE)}"
                ) from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}: line {number}: not a JSON object")
            yield number, cast("Row", row)


def checked(call: Call) -> Call:
    if min([call.output_len, *(segment.tokens for segment in call.segments)]) < 0:
        raise ValueError("a length is negative")
    if not isfinite(call.at_s):
        raise ValueError(f"it came at {call.at_s}")
    return call


def reader_of(row: Row) -> Callable[[int, Row], Call]:
    if AZURE[0] in row:
        return azure
    if "hash_ids" in row:
        return mooncake
    if "input_toks" in row:
        return tokens
    if "at_s" in row:
        return plain_call
    raise ValueError(f"no known kind of trace has the fields {', '.join(row)}")


FIELDS = ("at_s", "input_len", "segments", "output_len", "tenant", "priority", "deadline_s")


def plain_call(number: int, row: Row) -> Call:
    """The fields of a call; `input_len`, or pairs of a name and tokens as `segments`."""
    if unknown := [name for name in row if name not in FIELDS]:
        raise ValueError(f"unknown fields {', '.join(unknown)}; known are {', '.join(FIELDS)}")
    pairs = row["segments"] if "segments" in row else [[f"{number}", row["input_len"]]]
    segments = tuple(Segment(str(key), int(count)) for key, count in pairs)
    deadline = None if row.get("deadline_s") is None else float(row["deadline_s"])
    tenant, priority = str(row.get("tenant", "")), int(row.get("priority", 0))
    return Call(float(row["at_s"]), segments, int(row["output_len"]), tenant, priority, deadline)


def azure(number: int, row: Row) -> Call:
    """Lengths only: no two prompts have anything in common."""
    at, read, written = (row[name] for name in AZURE)
    time = datetime.fromisoformat(at).timestamp()
    return Call(time, (Segment(f"{number}", int(read)),), int(written))


def mooncake(number: int, row: Row) -> Call:
    """One id per 512 tokens of the prompt, the last one for fewer."""
    left = int(row["input_length"])
    segments: list[Segment] = []
    for name in row["hash_ids"]:
        segments.append(Segment(f"{name}", min(left, HASHED_TOKENS)))
        left -= segments[-1].tokens
    if left > 0:
        segments.append(Segment(f"rest of {number}", left))
    return Call(row["timestamp"] * MS, tuple(segments), int(row["output_length"]))


def tokens(number: int, row: Row) -> Call:
    """Lengths, and when it came."""
    prompt = Segment(f"{number}", int(row["input_toks"]))
    return Call(row["arrival_time_ns"] * NS, (prompt,), int(row["output_toks"]))
