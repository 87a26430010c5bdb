"""Digests of plans, and differences between a replay and its recording."""

from dataclasses import dataclass
from hashlib import blake2b

from paceline.core.plan import NO_ROWS, Admitted, Grown, Plan, Rows, StateMoves
from paceline.sched.replay.records import LENGTH, STEP, arguments, column

PARTS = ("rows", "positions", "blocks", "changes")
PART_BYTES = 8


def part(*pieces: bytes) -> bytes:
    return blake2b(b"".join(pieces), digest_size=PART_BYTES).digest()


def rows_part(rows: Rows) -> bytes:
    names = "\0".join(rows.request_id.tolist()).encode(errors="surrogatepass")
    columns = (rows.slot, rows.epoch, rows.child, rows.count, rows.drafts, rows.samples)
    numbers = map(column, columns)
    return part(LENGTH.pack(len(rows)), *numbers, column(rows.serial, "<i8"), names)


def blocks_part(grown: Grown, admitted: tuple[Admitted, ...]) -> bytes:
    """Blocks of a plan; only models with several attention groups add further parts."""
    given = [new.blocks for new in admitted]
    further = [new.more for new in admitted if new.more]
    pieces = [piece for one in (grown, *grown.more) for piece in grown_pieces(one)]
    return part(*pieces, arguments(given), arguments(further) if further else b"")


def grown_pieces(grown: Grown) -> list[bytes]:
    numbers = map(column, (grown.slot, grown.index, grown.block))
    return [LENGTH.pack(len(grown.block)), *numbers]


def changes_part(plan: Plan) -> bytes:
    came = [
        (new.slot, new.request.id, len(new.tokens), new.computed, new.resumed)
        for new in plan.admitted
    ]
    tokens = [column(new.tokens) for new in plan.admitted]
    left = plan.released, plan.preempted, plan.finished
    moved = plan.copies, plan.swap_out, plan.swap_in, plan.chosen, plan.kind
    further = (*encoder_pieces(plan), *state_pieces(plan.states))
    return part(arguments(came, *left, *moved), *tokens, *further)


def encoder_pieces(plan: Plan) -> list[bytes]:
    """The images encoded and embeddings read; empty without images."""
    if not len(plan.embedded):
        return []
    named = [(one.slot, one.image, one.identity, one.rows.tolist()) for one in plan.encode]
    read = plan.embedded
    return [arguments(named), *map(column, (read.row, read.offset, read.source))]


def state_pieces(moves: StateMoves) -> list[bytes]:
    """The copies of states; empty without states."""
    if moves.empty:
        return []
    placed = moves.saves_before, moves.copies, moves.loads, moves.saves
    return [arguments(*placed, moves.block_copies, moves.swap_out, moves.swap_in)]


NO_BLOCKS = blocks_part(Plan(0, NO_ROWS, NO_ROWS.count).grown, ())
NO_CHANGES = changes_part(Plan(0, NO_ROWS, NO_ROWS.count))


class Fingerprint:
    """Digests plans, with one digest per part. Rows that several plans share are digested once."""

    def __init__(self) -> None:
        self._rows: Rows = NO_ROWS
        self._rows_part = rows_part(NO_ROWS)

    def of(self, plan: Plan) -> bytes:
        """Every field of a plan, in 32 bytes."""
        if plan.rows is not self._rows:
            self._rows, self._rows_part = plan.rows, rows_part(plan.rows)
        came, grew = plan.admitted, len(plan.grown.block) or plan.grown.more
        changed = came or plan.released or plan.preempted or plan.finished or plan.chosen
        moved = plan.copies or plan.swap_out or plan.swap_in or plan.kind != "mixed"
        moved = moved or len(plan.embedded) or not plan.states.empty
        return b"".join(
            (
                self._rows_part,
                part(STEP.pack(plan.step), column(plan.start)),
                blocks_part(plan.grown, came) if grew or came else NO_BLOCKS,
                changes_part(plan) if changed or moved else NO_CHANGES,
            )
        )


NAMED = 4  # most requests named in a description of a plan
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
    offsets = [number * PART_BYTES for number in range(len(PARTS))]
    differing = [
        DIFFERENCES[name]
        for name, begin in zip(PARTS, offsets, strict=True)
        if recorded[begin : begin + PART_BYTES] != replayed[begin : begin + PART_BYTES]
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
