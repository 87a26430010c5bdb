"""The first difference between a replay and its recording, in words."""

from dataclasses import dataclass

from paceline.core.plan import Plan
from paceline.sched.replay.fingerprint import PART_BYTES, PARTS

NAMED = 4  # requests that a description of a plan names
DIFFERENCES = {
    "rows": "the rows and their tokens",
    "positions": "the first position of each row",
    "blocks": "the blocks handed out",
    "changes": "admissions, preemptions, copies or ends",
}


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first outcome that differs from the recorded one."""

    step: int
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.what}"


def differences(recorded: bytes, replayed: bytes) -> str:
    """The parts in which two fingerprints differ, in words."""
    places = [number * PART_BYTES for number in range(len(PARTS))]
    differing = [
        DIFFERENCES[name]
        for name, place in zip(PARTS, places, strict=True)
        if recorded[place : place + PART_BYTES] != replayed[place : place + PART_BYTES]
    ]
    return " and in ".join(differing)


def brief(plan: Plan) -> str:
    """A plan in one sentence."""
    content = plan.to_dict()
    shares = [f"{name}: {count}" for name, count in content["tokens"].items()]
    parts = [f"{content['total']} positions in {len(shares)} rows ({listing(shares)})"]
    for change in ("new", "resumed", "preempted", "finished"):
        if content[change]:
            parts.append(f"{change} {listing(content[change])}")
    return ", ".join(parts)


def listing(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
