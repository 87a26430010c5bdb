"""What the next plan tells the runner, and what of it is void when a slot is given up."""

from paceline.core.plan import Admitted
from paceline.sched.changes import Changes
from tests.sched.support import ask


def newcomer(slot: int) -> Admitted:
    request = ask("a", 3)
    return Admitted(slot, request, request.prompt, 0, (1,), resumed=False)


def gathered() -> Changes:
    """A fork into each of slots 1 and 2."""
    news = Changes()
    for slot in (1, 2):
        news.admitted.append(newcomer(slot))
        news.copies.append((slot, ((0, slot),)))
        news.chosen[slot] = 70 + slot
    return news


def test_there_is_no_news_at_first_and_none_is_shared() -> None:
    news = Changes()
    assert (news.released, news.preempted, list(news.finished)) == ([], [], [])
    assert (news.admitted, news.copies, news.chosen) == ([], [], {})
    assert (news.swap_out, news.swap_in) == ((), ())
    news.released.append(3)
    assert Changes().released == []


def test_what_was_to_be_told_of_a_slot_is_void_when_it_is_given_up() -> None:
    news = gathered()
    news.release(1)
    assert news.released == [1]
    assert [new.slot for new in news.admitted] == [2]
    assert news.copies == [(2, ((0, 2),))]
    assert news.chosen == {2: 72}


def test_a_slot_of_which_nothing_was_to_be_told_is_just_given_up() -> None:
    news = gathered()
    news.release(5)
    assert (news.released, len(news.admitted), len(news.copies)) == ([5], 2, 2)
    empty = Changes()
    empty.release(5)
    assert empty.released == [5]


def test_copies_for_one_that_goes_to_the_host_are_still_done() -> None:
    """What it was to begin with is what is kept of it."""
    news = gathered()
    news.copies.append((1, ((0, 9),)))
    assert news.keep_copies([1]) == [((0, 1),), ((0, 9),)]
    news.release(1)
    assert [pairs for _, pairs in news.copies] == [((0, 1),), ((0, 2),), ((0, 9),)]
    assert [slot for slot, _ in news.copies] == [-1, 2, -1]
    assert [new.slot for new in news.admitted] == [2]


def test_no_copies_are_kept_for_one_that_has_none() -> None:
    news = gathered()
    assert news.keep_copies([7]) == []
    assert [slot for slot, _ in news.copies] == [1, 2]
