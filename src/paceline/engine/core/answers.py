"""Answers that may come later."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
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
