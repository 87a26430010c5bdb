"""Answers that may come later."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Lock
from typing import Any, cast


def settle(answer: Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a future its value or its error, unless it has one or was cancelled."""
    with suppress(InvalidStateError):
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)


def when_done(found: Any, use: Callable[[Any, BaseException | None], None]) -> None:
    """Call `use` with a value, or with what a future gets, at once or on another thread."""
    if not isinstance(found, Future):
        use(found, None)
        return

    def ended(future: Future[Any]) -> None:
        error = future.exception()
        use(None if error else future.result(), error)

    cast("Future[Any]", found).add_done_callback(ended)


def when_all_done(futures: Sequence[Future[Any]], use: Callable[[], None]) -> None:
    """Call `use` once all of one or more futures are done, at once or on another thread."""
    left, counting = len(futures), Lock()

    def one_done(_: Future[Any]) -> None:
        nonlocal left
        with counting:
            left -= 1
            last = left == 0
        if last:
            use()

    for future in futures:
        future.add_done_callback(one_done)
