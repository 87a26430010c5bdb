"""Where the time of an ended request went, read from its life."""

from collections.abc import Sequence as Row

from paceline.core.events import Happened, Moment
from paceline.core.plan import Ended
from paceline.core.request import Sequence
from paceline.engine.core.messages import Departure, Timings
from paceline.sched.scheduler import Scheduler


def departure(scheduler: Scheduler, ended: Ended) -> Departure:
    """To be asked before the next plan; later only the latest ends are remembered."""
    sequence = scheduler.view.ended(ended.request_id)
    if ended.child >= 0 or sequence is None:
        return Departure(ended)
    # Whoever is left of a family knows the life of all, and its own hits alone.
    cached = next((one.amount for one in sequence.life if one.happened is Happened.ADMITTED), 0)
    return Departure(ended, timings(sequence), cached)


def timings(sequence: Sequence) -> Timings:
    """Stages follow one another from arrival to the end; the last one reached takes the rest."""
    life = sequence.life
    end = life[-1].time
    admitted = first(life, Happened.ADMITTED, end)
    token = first(life, Happened.FIRST_TOKEN, end)
    return Timings(
        queue_s=admitted - sequence.arrival,
        prefill_s=token - admitted,
        decode_s=end - token,
        total_s=end - sequence.arrival,
        preemptions=sequence.preemptions,
    )


def first(life: Row[Moment], happened: Happened, otherwise: float) -> float:
    return next((moment.time for moment in life if moment.happened is happened), otherwise)
