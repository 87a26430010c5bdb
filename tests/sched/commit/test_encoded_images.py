"""What a commit does for images: those passed are dropped, and what was encoded is kept."""

from paceline import ImageInput
from tests.sched.admission.test_images_ahead import ask, cached, commit, held, scheduler_of


def test_what_a_step_encodes_is_kept_once_it_has_come_back() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, ImageInput("cat", 2, 4)), now=0.0)
    first, second = scheduler.plan(now=0.0), scheduler.plan(now=0.0)
    assert held(scheduler) == 4, "no step has come back"
    commit(scheduler, first)
    assert held(scheduler) == 0
    scheduler.retry(second, now=0.0)
    assert cached(scheduler, "cat") == [True]
