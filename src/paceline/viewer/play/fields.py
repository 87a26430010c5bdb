"""Read values from plain content by name, type and range; errors name the place."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import inf
from typing import Any, cast

from paceline.core.errors import PacelineError

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)")
LONGEST_ID = 64
ABSENT = object()


class ScriptError(PacelineError, ValueError):
    """A workload that cannot be played, and the place of the error in it."""

    def __init__(self, place: str, complaint: str) -> None:
        super().__init__(f"{place}: {complaint}")


def shown(value: Any) -> str:
    """A value in an error message. Python refuses to print very long numbers."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def whole(value: Any) -> bool:
    """Is it a whole number? (In Python, True is an int.)"""
    return isinstance(value, int) and not isinstance(value, bool)


class Fields:
    """One mapping of a workload. `finish` refuses fields that were not read."""

    def __init__(self, content: Any, place: str, root: bool = False) -> None:
        self.place = place
        self._root = root
        if not isinstance(content, dict):
            raise ScriptError(place, f"must be a mapping of fields, not {kind_of(content)}")
        self._content = cast(dict[Any, Any], content)
        self._known: list[str] = []

    def place_of(self, name: str) -> str:
        return f"{self.place}: {name}" if self._root else f"{self.place}.{name}"

    def _take(self, name: str, default: Any) -> Any:
        """The value; a field whose default is None is required."""
        self._known.append(name)
        value = self._content.get(name)
        if value is None:
            value = default
        if value is None:
            raise ScriptError(self.place, f"needs the field {name}")
        return value

    def _complain(self, name: str, kind: str, value: Any) -> ScriptError:
        return ScriptError(self.place_of(name), f"must be {kind}, not {shown(value)}")

    def finish(self) -> None:
        """Refuse unknown fields."""
        for name in self._content:
            if name not in self._known:
                close = get_close_matches(str(name), self._known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ScriptError(self.place, f"has an unknown field {name!r}{hint}")

    def refuse(self, names: tuple[str, ...], complaint: str) -> None:
        """Refuse fields that have no meaning with the others."""
        for name in names:
            if self._content.get(name) is not None:
                raise ScriptError(self.place_of(name), complaint)
            self._known.append(name)

    # -- one method per type ------------------------------------------------

    def text(self, name: str, default: str | None) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or not value.isprintable() or (default is None and not value):
            raise self._complain(name, "a line of text", value)
        return value

    def identity(self, name: str) -> str:
        """An id may be written as a number."""
        value = self._take(name, None)
        text = str(value) if whole(value) and abs(value) < 10**LONGEST_ID else value
        if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= LONGEST_ID:
            raise self._complain(name, f"a name of 1 to {LONGEST_ID} letters", value)
        return text

    def whole(self, name: str, default: int | None, low: int, high: int) -> int:
        """A whole number from `low` to `high`; the default may lie outside."""
        value = self._take(name, default)
        if self._content.get(name) is None:
            return value
        if not whole(value):
            raise self._complain(name, "a whole number", value)
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high:,}"
            raise self._complain(name, limit, value)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._take(name, default)
        if not (whole(value) or isinstance(value, float)) or not low <= value <= high:
            raise self._complain(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def one_of(self, name: str, default: Any, choices: tuple[Any, ...], kind: str) -> Any:
        """One of a few values, of the same type: 0 is not False."""
        value = self._take(name, default)
        if not any(value is one or (value == one and isinstance(one, str)) for one in choices):
            raise self._complain(name, kind, value)
        return value

    def wholes(self, name: str, low: int, high: int) -> list[int]:
        """A whole number or a list of them; empty if absent."""
        value = self._take(name, [])
        if not isinstance(value, list):
            return [self.whole(name, None, low, high)]
        found = cast(list[Any], value)
        if not all(whole(one) and low <= one <= high for one in found):
            raise self._complain(name, f"a list of whole numbers from {low} on", found)
        return found

    def seconds(self, name: str) -> float:
        """A time span: seconds as a number, or a text like "80ms"; infinite if absent."""
        value = self._take(name, inf)
        span: Any = duration(value) if isinstance(value, str) else value
        if not (whole(span) or isinstance(span, float)) or not span > 0:
            raise self._complain(name, "a time like 0.08 (seconds) or '80ms'", value)
        try:
            return float(span)
        except OverflowError:
            raise self._complain(name, "a time that fits a float", value) from None

    def arrival(self, name: str, last: int) -> tuple[int, float]:
        """The step and the time in seconds of an arrival; only one of them is given."""
        value = self._take(name, 1)
        if whole(value) and value >= 1:
            return self.whole(name, 1, 1, last), 0.0
        time = duration(value) if isinstance(value, str) else None
        if time is None or time == inf:
            raise self._complain(name, "a step from 1 on, or a time like '120ms'", value)
        return 1, time

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A mapping with any names; empty if absent."""
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._complain(name, "a mapping", value)
        found = cast(dict[Any, Any], value)
        if unknown := [key for key in found if not isinstance(key, str)]:
            raise ScriptError(self.place_of(name), f"has an unknown field {unknown[0]!r}")
        return found

    def nested(self, name: str) -> "Fields | None":
        """The fields of a nested mapping; None if absent."""
        value = self._take(name, ABSENT)
        return None if value is ABSENT else Fields(value, self.place_of(name))

    def sequence(self, name: str) -> list[Any]:
        value = self._take(name, [])
        if not isinstance(value, list):
            raise self._complain(name, "a list", value)
        return cast(list[Any], value)

    def items(self, name: str) -> list[tuple[str, Any]]:
        """The entries of a list, each with its place."""
        self._take(name, None)
        place = self.place_of(name)
        return [(f"{place}[{index}]", one) for index, one in enumerate(self.sequence(name))]


def duration(text: str) -> float | None:
    """Seconds of a text like "80ms" or "1.5s"."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)


def kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else shown(value)
