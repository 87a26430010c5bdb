"""Reads the fields of a line of a trace, and says in words what is wrong with one."""

from datetime import datetime
from math import isfinite
from typing import Any, cast

from paceline.workloads.prompts import LONGEST

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
