"""The life of a request in sentences: its waits, their reasons, and its events."""

from collections import defaultdict
from collections.abc import Iterable

from paceline.core.errors import some
from paceline.core.events import Happened, Moment
from paceline.core.request import Finish, Sequence
from paceline.core.settings.config import JournalConfig
from paceline.sched.explain.journal import Passage, Spell
from paceline.sched.slots import Idle
from paceline.sched.state import SchedulerState

SHOWN_S = 0.0005  # a shorter time would be printed as 0 ms


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"


def tokens(value: int) -> str:
    return f"{value:,} token" + ("" if value == 1 else "s")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def forgotten(request_id: str, config: JournalConfig) -> str:
    """The error message for a request that is neither open nor remembered."""
    remembered = plural(config.journal_requests, "finished request")
    return (
        f"no request {request_id!r} is known: the id is wrong, or it is older than the last "
        f"{remembered}: raise journal_requests"
    )


def tell(sequence: Sequence, at: SchedulerState) -> str:
    """One sentence for each event of a request, and lines for each wait."""
    request = sequence.request
    new = sequence.limit - len(request.prompt)
    lines = [
        f"{request.id!r}: {tokens(len(request.prompt))} of prompt, at most {new:,} new; "
        f"{standing(sequence)}."
    ]
    start = sequence.queued_at
    begin: Moment | None = None  # of the current wait
    for moment in sequence.life:
        if begin is not None and moment.happened in ENDS_WAIT:
            lines += wait_lines(sequence, at, begin, moment)
            begin = None
        lines.append(f"  {seconds(moment.time - start)}: {sentence(moment)}")
        if moment.happened in BEGINS_WAIT:
            begin = moment
    if begin is not None:
        lines += wait_lines(sequence, at, begin, begin._replace(time=at.now, step=at.step))
    if sequence.slot >= 0:
        lines.append(f"  {progress(sequence, at)}")
        if at.table.most_drafts[sequence.slot]:
            lines.append(f"  {drafting(sequence, at)}")
    return "\n".join(lines)


ENDINGS = {
    Finish.STOP: "the text came to its end",
    Finish.LENGTH: "reached max_tokens",
    Finish.ABORT: "aborted",
    Finish.TIMEOUT: "timed out",
    Finish.ERROR: "failed",
}


def standing(sequence: Sequence) -> str:
    """The state of a request, or how it ended."""
    most, new = sequence.request.max_tokens, sequence.limit - len(sequence.request.prompt)
    if sequence.finish is Finish.LENGTH and most != new:
        return "finished: reached max_model_len"
    if sequence.finish is not None:
        return f"finished: {ENDINGS[sequence.finish]}"
    if sequence.parked:
        return f"waiting for {sequence.parked}"
    return sequence.state.lower()


BEGINS_WAIT = (Happened.SUBMITTED, Happened.WOKEN, Happened.PREEMPTED)
ENDS_WAIT = (
    Happened.ADMITTED,
    Happened.RESUMED,
    Happened.RETURNED,
    Happened.PARKED,
    Happened.FINISHED,
)


SENTENCES = {
    Happened.SUBMITTED: "submitted, with {requests} waiting.",
    Happened.PARKED: "parked for {cause}.",
    Happened.WOKEN: "woken: {cause} is ready.",
    Happened.ADMITTED: "admitted in step {step}; {tokens} came from the prefix cache.",
    Happened.RESUMED: "resumed in step {step}; {tokens} were still in the cache.",
    Happened.EVICTED: "computes again what was cached: up to {tokens} evicted {cause}.",
    Happened.CONTINUED: "continues after {tokens} that another engine generated.",
    Happened.FORKED: "forked into {amount} sequences that share the prompt.",
    Happened.FIRST_TOKEN: "first token, from step {step}.",
    Happened.PREEMPTED: "preempted in step {step} with {tokens} known, for {cause}.",
    Happened.SWAPPED: "swapped out: {blocks} copied to the host.",
    Happened.LOADED: "{tokens} of these are loaded from host memory in step {step}.",
    Happened.FETCHED: "{tokens} loaded from {cause}.",
    Happened.NOT_FETCHED: "not loaded: {cause}; it computes them.",
    Happened.RETURNED: "swapped in at step {step}: {blocks} copied back.",
    Happened.DEMOTED: "not kept on the host: {cause}.",
    Happened.DRAFTED: "{amount} of {cause} drafts were accepted.",
    Happened.MISSED: "missed its target: {cause}.",
    Happened.FINISHED: "ended ({cause}) with {tokens} known.",
}


def sentence(moment: Moment) -> str:
    amount = moment.amount
    told = SENTENCES[moment.happened].format(
        step=moment.step,
        cause=moment.cause,
        amount=amount,
        tokens=tokens(amount),
        blocks=plural(amount, "block"),
        requests=plural(amount, "request"),
    )
    if moment.happened in (Happened.ADMITTED, Happened.RESUMED) and moment.cause:
        deepest = f"the deepest snapshot is at {amount:,}" if amount else "there is no snapshot"
        told += f" KV of {tokens(int(moment.cause))} is cached; {deepest}."
    return told


def progress(sequence: Sequence, at: SchedulerState) -> str:
    slot = sequence.slot
    known, computed = int(at.table.known[slot]), int(at.table.computed[slot])
    line = f"now: {computed:,} of {tokens(known)} computed"
    idle = int(at.table.idle_steps[slot])
    return line + (f"; {plural(idle, 'step')} without a position." if idle else ".")


def drafting(sequence: Sequence, at: SchedulerState) -> str:
    """The drafts of a resident: computed and accepted."""
    table, slot = at.table, sequence.slot
    line = f"drafts: {int(table.accepted[slot]):,} of {int(table.drafted[slot]):,} accepted"
    if at.speculation.is_paused:
        line += "; drafting is paused, because it would cost more time than it saves"
    elif reason := at.speculation.reason:
        line += f"; {reason}"
    return f"{line}."


IDLING = {
    Idle.BUDGET: "token budget: other requests used it",
    Idle.BLOCKS: "blocks: some are still being copied",
    Idle.ROOM: "room: its policy lets it wait",
    Idle.ENCODER: "room in the encoder cache: images of other requests take it",
}


def why(at: SchedulerState) -> dict[str, str]:
    """Why live requests got nothing in the latest step, by id."""
    waiting = (*at.queue.parked.values(), *at.swapped, *at.queue)
    reasons = {one.id: why_waiting(one, at) for one in waiting}
    for slot in at.table.order[at.table.idle_at[at.table.order] == at.step].tolist():
        reasons[at.table.sequence(slot).id] = IDLING[Idle(at.table.idle_for[slot])]
    return reasons


def why_waiting(sequence: Sequence, at: SchedulerState) -> str:
    """Why a non-resident sequence was not admitted in the latest step."""
    if sequence.parked:
        return f"parked for {sequence.parked}"
    if passed := at.journal.passed_over(sequence):
        return own_cause(passed)
    spell = at.journal.open_spell
    if spell is None:
        return "not considered yet"
    own = spell.gate.request_id == sequence.id
    return own_cause(spell) if own else f"behind {head_cause(spell)}"


def wait_lines(sequence: Sequence, at: SchedulerState, begin: Moment, end: Moment) -> list[str]:
    """Describe the wait from `begin` to `end`; no lines if it was shorter than SHOWN_S."""
    if end.time - begin.time < SHOWN_S:
        return []
    found = [pair for pair in causes(sequence, at, begin, end) if pair[1] >= SHOWN_S]
    parts = [f"{seconds(time)} {cause}" for cause, time in found]
    line = f"  waited {seconds(end.time - begin.time)}"
    return [f"{line}: {', '.join(parts)}." if parts else f"{line}."]


def causes(
    sequence: Sequence, at: SchedulerState, begin: Moment, end: Moment
) -> Iterable[tuple[str, float]]:
    """The reasons for a wait with their seconds, longest first."""
    own: dict[str, float] = defaultdict(float)
    behind: dict[str, float] = defaultdict(float)
    heads: dict[str, None] = {}
    passed = [one for one in at.journal.spells if is_passed_over(one, sequence)]
    for spell in at.journal.spells:
        since, until = max(spell.since, begin.time), min(spell.until, end.time)
        if until <= since:
            continue
        if spell.gate.request_id == sequence.id:
            own[own_cause(spell)] += until - since
        elif not spell.gate.passed_over:
            # While it was passed over, it did not wait behind the request that stopped the queue.
            time = until - since - sum(overlap(one, since, until) for one in passed)
            if time > 0:
                aged = ", by one that goes first because of its age" if spell.gate.aged else ""
                behind[reason(spell) + aged] += time
                heads[repr(spell.gate.request_id)] = None
    found = list(own.items())
    if behind:
        ahead = overtakers(sequence, at, begin, end) or some(list(heads))
        why = ", ".join(f"{seconds(time)} {cause}" for cause, time in behind.items())
        found.append((f"behind {ahead} (of which {why})", sum(behind.values())))
    return sorted(found, key=lambda pair: -pair[1])


def is_passed_over(spell: Spell, sequence: Sequence) -> bool:
    return spell.gate.passed_over and spell.gate.request_id == sequence.id


def overlap(spell: Spell, since: float, until: float) -> float:
    """Seconds of a spell between two moments."""
    return max(min(spell.until, until) - max(spell.since, since), 0.0)


REASONS = {
    "blocks": "for blocks",
    "seqs": "for a slot (max_num_seqs)",
    "budget": "for the token budget",
    "others": "for slots, so that some are left for others (slots_for_others)",
    "pace": "for time in a step (max_step_s)",
    "room": "for room, since its policy lets it wait",
    "preempted": "in steps that had to preempt",
    "decodes": "in steps that decode",
    "prefill": "in steps that prefill",
    "swapping": "for its copy to the host",
    "encoder": "for room in the encoder cache",
    "paused": "while admission was paused",
}


def reason(spell: Spell) -> str:
    """The reason of a gate in words."""
    return REASONS.get(spell.gate.reason, f"for {spell.gate.reason}")


def own_cause(spell: Spell) -> str:
    if spell.gate.reason == "blocks":
        return f"for blocks, {spell.gate.short:,} short at first"
    return reason(spell)


def head_cause(spell: Spell) -> str:
    return f"{spell.gate.request_id!r}, which waits {own_cause(spell)}"


def overtakers(sequence: Sequence, at: SchedulerState, begin: Moment, end: Moment) -> str:
    """Requests admitted during the wait, with their tokens."""
    others: list[Passage] = []
    for passage in at.journal.passages:
        if begin.step < passage.step <= end.step:
            if passage.serial == sequence.serial:
                break
            others.append(passage)
    if not others:
        return ""
    work = sum(p.tokens for p in others)
    return f"{plural(len(others), 'request')} of {tokens(work)} in all"
