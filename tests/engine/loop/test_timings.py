"""Timings: stages that follow one another, and the last one reached takes the rest."""

import pytest

from paceline.core.events import Happened, Moment, Timings
from paceline.core.request import Request, Sequence
from paceline.engine.loop.turn_report import timings


def lived(*life: tuple[Happened, float], generated: tuple[tuple[int, ...], ...] = ()) -> Sequence:
    request = Request(id="a", prompt=[1], generated=generated)  # pyright: ignore[reportArgumentType]
    moments = [Moment(happened, time, 0) for happened, time in life]
    return Sequence(request, 0, 2, 1.0, request.prompt, life=moments, preemptions=2)


@pytest.mark.parametrize(
    ("life", "expected"),
    [
        (
            [
                (Happened.SUBMITTED, 2.0),
                (Happened.ADMITTED, 4.0),
                (Happened.PREEMPTED, 5.0),
                (Happened.RESUMED, 6.0),
                (Happened.FIRST_TOKEN, 8.0),
                (Happened.FIRST_TOKEN, 9.0),
                (Happened.FINISHED, 16.0),
            ],
            Timings(3.0, 4.0, 8.0, 15.0, 2),
        ),
        (
            [(Happened.SUBMITTED, 2.0), (Happened.ADMITTED, 4.0), (Happened.FINISHED, 7.0)],
            Timings(3.0, 3.0, 0.0, 6.0, 2, "prefill"),
        ),
        (
            [(Happened.SUBMITTED, 2.0), (Happened.FINISHED, 7.0)],
            Timings(6.0, 0.0, 0.0, 6.0, 2, "queue"),
        ),
        (
            [
                (Happened.SUBMITTED, 2.0),
                (Happened.ADMITTED, 4.0),
                (Happened.FIRST_TOKEN, 5.0),
                (Happened.FINISHED, 7.0),
            ],
            Timings(3.0, 1.0, 2.0, 6.0, 2),
        ),
    ],
)
def test_time_is_shared_out(life: list[tuple[Happened, float]], expected: Timings) -> None:
    assert timings(lived(*life)) == expected


def test_the_time_in_an_engine_that_died_is_no_time_in_the_queue() -> None:
    """The first engine had it from 1 s to 5 s."""
    moved = (Happened.SUBMITTED, 5.0), (Happened.ADMITTED, 6.0)
    goes_on = lived(*moved, (Happened.CONTINUED, 6.0), (Happened.FINISHED, 9.0), generated=((7,),))
    assert timings(goes_on) == Timings(1.0, 0.0, 3.0, 8.0, 2)
    anew = lived(*moved, (Happened.FIRST_TOKEN, 7.5), (Happened.FINISHED, 9.0), generated=((),))
    assert timings(anew) == Timings(1.0, 1.5, 1.5, 8.0, 2)


@pytest.mark.parametrize(
    ("told", "staged"),
    [
        (Timings(total_s=3.0), False),  # cut from outside
        (Timings(), True),
        (Timings(queue_s=3.0, total_s=3.0), True),
        (Timings(prefill_s=3.0, total_s=3.0), True),
        (Timings(decode_s=3.0, total_s=3.0), True),
    ],
)
def test_time_that_was_not_shared_out_is_known_as_such(told: Timings, staged: bool) -> None:
    assert told.staged == staged
