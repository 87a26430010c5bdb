"""Reads a trace, and checks it against the Trace Event Format that Chrome and Perfetto document."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]
# What each kind of event must have, besides a process and a name.
NEEDED = {
    "X": {"tid", "ts", "dur", "args"},  # a slice
    "C": {"ts", "args"},  # amounts
    "b": {"cat", "id", "ts", "args"},  # the beginning of a span
    "e": {"cat", "id", "ts"},  # its end
    "M": {"args"},  # a name of a process or a thread
}
ROUNDED_US = 0.01


class Timeline:
    """The events of a file, by process and track. Spans of a process that was `killed` may be open;
    they are left out."""

    def __init__(self, path: Path, killed: int = 0) -> None:
        self._killed = killed
        self.events: list[Event] = json.loads(path.read_text())
        for one in self.events:
            check_event(one)
        self.processes = {one["pid"]: one["args"]["name"] for one in self.named("process_name")}
        self._tracks = {
            (one["pid"], one["tid"]): one["args"]["name"] for one in self.named("thread_name")
        }
        self._check_slices()
        self._check_spans()

    def named(self, name: str) -> list[Event]:
        return [one for one in self.events if one["name"] == name]

    def tracks(self) -> dict[str, list[Event]]:
        """The slices of all processes, in order, by the name of their track."""
        found: dict[str, list[Event]] = defaultdict(list)
        for one in sorted(self._of("X"), key=lambda one: one["ts"]):
            found[self._tracks[one["pid"], one["tid"]]].append(one)
        return found

    def spans(self, kind: str) -> dict[str, list[tuple[Event, Event]]]:
        """The beginnings and ends of spans of a kind, those that begin first in front, by id."""
        found: dict[str, list[Event]] = defaultdict(list)
        for one in self.events:
            if one["ph"] in ("b", "e") and one["cat"] == kind and one["pid"] != self._killed:
                process, _, name = one["id"].partition(".")
                assert process == str(one["pid"])
                found[name].append(one)
        return {name: nested(ones) for name, ones in found.items()}

    def _of(self, phase: str) -> list[Event]:
        return [one for one in self.events if one["ph"] == phase]

    def _check_slices(self) -> None:
        """Slices of a track do not overlap, and the track has a name."""
        by_track: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for one in self._of("X"):
            by_track[one["pid"], one["tid"]].append(one)
        assert by_track.keys() == self._tracks.keys()
        for slices in by_track.values():
            for one, next_ in pairwise(sorted(slices, key=lambda one: one["ts"])):
                assert one["ts"] + one["dur"] <= next_["ts"] + ROUNDED_US

    def _check_spans(self) -> None:
        for kind in {one["cat"] for one in self._of("b")}:
            for pairs in self.spans(kind).values():
                assert all(begin["ts"] <= end["ts"] for begin, end in pairs)


def nested(events: list[Event]) -> list[tuple[Event, Event]]:
    """The spans of a line. Events with the same time keep their order, and an end belongs to the
    latest beginning that is open."""
    found: dict[int, tuple[Event, Event]] = {}
    open_: list[tuple[int, Event]] = []
    for place, one in enumerate(sorted(events, key=lambda one: one["ts"])):
        if one["ph"] == "b":
            open_.append((place, one))
        else:
            first, begin = open_.pop()
            assert begin["name"] == one["name"]
            found[first] = begin, one
    assert not open_
    return [found[place] for place in sorted(found)]


def check_event(one: Event) -> None:
    needed = NEEDED[one["ph"]]
    assert needed <= one.keys(), one
    assert isinstance(one["pid"], int)
    assert isinstance(one["name"], str)
    assert isinstance(one.get("tid", 0), int)
    for name in ("ts", "dur"):
        assert isinstance(one.get(name, 0.0), int | float)
        assert one.get(name, 0.0) >= 0
    if one["ph"] == "C":
        assert all(isinstance(value, int | float) for value in one["args"].values())
