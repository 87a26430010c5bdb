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
from paceline.workloads.call import LONGEST, Call, Segment

Row = dict[str, Any]
# Times of a trace, in seconds: those since 1970 fit, and sums of them keep their microseconds.
LATEST_S, YEARS = 1e10, 300


def number(row: Row, name: str) -> float:
    """A finite number; in a table it is a text."""
    value = present(row, name)
    try:
        found = float("nan") if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        found = float("nan")
    if not isfinite(found):
        raise ValueError(f"{name} is {shown(value)}; it must be a finite number")
    return found


def seconds(row: Row, name: str, unit_s: float = 1.0) -> float:
    """A time in units of `unit_s`, as seconds."""
    found = number(row, name) * unit_s
    if abs(found) > LATEST_S:
        bound = LATEST_S / unit_s
        raise ValueError(
            f"{name} is {shown(row[name])}; it must lie in {-bound:.0e}..{bound:.0e}, which is "
            f"{YEARS} years"
        )
    return found


def whole(row: Row, name: str) -> int:
    found = number(row, name)
    if found != int(found):
        raise ValueError(f"{name} is {shown(row[name])}; it must be a whole number")
    return int(found)


def length(row: Row, name: str) -> int:
    """A number of tokens."""
    found = whole(row, name)
    if not 0 <= found <= LONGEST:
        raise ValueError(f"{name} is {shown(row[name])}; it must lie in 0..{LONGEST}")
    return found


def moment(row: Row, name: str) -> float:
    """Seconds since 1970, of a date with a time of day."""
    value = present(row, name)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (OverflowError, TypeError, ValueError):
        example = "2023-11-16 18:15:46.68"
        raise ValueError(f"{name} is {shown(value)}; it must be a time such as {example}") from None


def several(row: Row, name: str) -> list[Any]:
    value = present(row, name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shown(value)}; it must be a list")
    return cast("list[Any]", value)


def present(row: Row, name: str) -> Any:
    """KeyError if a line has no such field; a table has None in place of one."""
    if row.get(name) is None:
        raise KeyError(name)
    return row[name]


def shown(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


HASHED_TOKENS = 512  # that one id of Mooncake's stands for
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
NS, MS = 1e-9, 1e-3


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
            for line, row in rows(lines, path):
                try:
                    yield reader_of(row)(line, row)
                except KeyError as error:
                    raise ConfigError(f"{path}: line {line}: no field {error}") from None
                except ValueError as error:
                    raise ConfigError(f"{path}: line {line}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text: byte {error.start} is no UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def rows(lines: Iterator[str], path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a table or of lines of JSON, with the numbers of their lines."""
    first = next(lines, "")
    if first.startswith(AZURE[0]):
        yield from enumerate(csv.DictReader(lines, first.strip().split(",")), 2)
        return
    for place, line in enumerate(chain([first], lines), 1):
        if line.strip():
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{path}: line {place}: not JSON{fault(error)}; a trace is lines of JSON, or a "
                    f"table that begins with {','.join(AZURE)}"
                ) from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}: line {place}: not a JSON object")
            yield place, cast("Row", row)


def fault(error: Exception) -> str:
    return f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""


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


def plain_call(line: int, row: Row) -> Call:
    """The fields of a call; `input_len`, or pairs of a name and tokens as `segments`."""
    if unknown := [name for name in row if name not in FIELDS]:
        raise ValueError(f"unknown fields {', '.join(unknown)}; known are {', '.join(FIELDS)}")
    if "segments" in row:
        segments = tuple(map(segment, several(row, "segments")))
    else:
        segments = (Segment(f"{line}", length(row, "input_len")),)
    deadline = None if row.get("deadline_s") is None else seconds(row, "deadline_s")
    priority = whole(row, "priority") if "priority" in row else 0
    output = length(row, "output_len")
    return Call(
        seconds(row, "at_s"), segments, output, str(row.get("tenant", "")), priority, deadline
    )


def segment(pair: Any) -> Segment:
    match pair:
        case [name, int(tokens)] if 0 <= tokens <= LONGEST:
            return Segment(str(name), tokens)
        case _:
            raise ValueError(f"segments has {shown(pair)}; it must be pairs of a name and tokens")


def azure(line: int, row: Row) -> Call:
    """Lengths only: no two prompts have anything in common."""
    time, read, written = AZURE
    prompt = Segment(f"{line}", length(row, read))
    return Call(moment(row, time), (prompt,), length(row, written))


def mooncake(line: int, row: Row) -> Call:
    """One id per 512 tokens of the prompt, the last one for fewer."""
    left = length(row, "input_length")
    segments: list[Segment] = []
    for name in several(row, "hash_ids"):
        segments.append(Segment(f"{name}", min(left, HASHED_TOKENS)))
        left -= segments[-1].tokens
    if left > 0:
        segments.append(Segment(f"rest of {line}", left))
    return Call(seconds(row, "timestamp", MS), tuple(segments), length(row, "output_length"))


def tokens(line: int, row: Row) -> Call:
    """Lengths, and when it came."""
    prompt = Segment(f"{line}", length(row, "input_toks"))
    return Call(seconds(row, "arrival_time_ns", NS), (prompt,), length(row, "output_toks"))
