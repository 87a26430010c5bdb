"""A server that speaks RESP, such as Valkey or Redis, as a map of bytes."""

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Any

from paceline.core.plugins import library

log = logging.getLogger(__name__)

SCANNED = 1000  # keys that the server looks at in one command


class ServerHealth:
    """Whether a server is asked at all, for the threads that ask it. Going down and coming back
    are logged once each, and so is refusing values and taking them again."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._lock = Lock()
        self._down_until = 0.0  # 0: it is up
        self._full_until = 0.0  # 0: it takes values; only the thread that stores sets it

    @property
    def is_down(self) -> bool:
        """Whether it failed less than `retry_s` ago."""
        return monotonic() < self._down_until

    @property
    def is_full(self) -> bool:
        """Whether it refused a value less than `retry_s` ago."""
        return monotonic() < self._full_until

    def refused(self, error: Exception) -> None:
        """It does not take a value."""
        if not self._full_until:
            log.warning("KV is loaded, but not stored: the server refuses it: %s", error)
        self._full_until = monotonic() + self._retry_s

    def took(self) -> None:
        """It took values."""
        if self._full_until:
            log.info("KV is stored again: the server takes it")
        self._full_until = 0.0

    def failed(self, error: Exception) -> None:
        with self._lock:
            was_up, self._down_until = not self._down_until, monotonic() + self._retry_s
        if was_up:
            log.warning("KV is neither loaded nor stored: the server failed: %s", error)

    def answered(self) -> None:
        with self._lock:
            was_down, self._down_until = self._down_until > 0, 0.0
        if was_down:
            log.info("KV is loaded and stored again: the server answers")


class RespServer:
    """A connection that is opened when it is needed. Only one thread may call it.

    After an error, or no answer within `timeout_s`, the server counts as down for a while: every
    call raises OSError at once. A server that only refuses to store something is not down.
    """

    def __init__(self, url: str, timeout_s: float, health: ServerHealth) -> None:
        """ValueError if the URL is wrong."""
        redis = library(("redis",), "valkey")
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        # No retries: each would take a time limit of its own.
        once = library(("redis.retry",), "valkey").Retry(redis.backoff.NoBackoff(), 0)
        limits = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        self._client = redis.Redis.from_url(url, retry=once, **limits)
        self._health = health

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """The bytes of values, which count as used; 0: there is none, or another kind of value."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.strlen(key)  # `exists` would not count as a use
        return self._call(lambda: [size_of(one) for one in pipeline.execute(raise_on_error=False)])

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._call(self._client.mget, keys)

    def set(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """OSError if the server refuses one, which a full server does."""
        pipeline = self._client.pipeline(transaction=False)
        for key, value in zip(keys, values, strict=True):
            pipeline.set(key, value)
        answers: list[Any] = self._call(pipeline.execute, False)
        for answer in answers:
            if isinstance(answer, Exception):
                self._health.refused(answer)
                raise OSError(str(answer))
        self._health.took()

    def remove(self, keys: Sequence[bytes]) -> None:
        self._call(self._client.unlink, *keys)

    def remove_all(self, prefix: bytes) -> None:
        """Remove the keys that begin with `prefix`, which has no wildcards."""
        cursor = 0
        while True:
            cursor, found = self._call(self._client.scan, cursor, prefix + b"*", SCANNED)
            if found:
                self.remove(found)
            if not cursor:
                return

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._health.is_down:
            raise OSError("the server is down")
        try:
            found = function(*arguments)
        except self._errors as error:
            self._health.failed(error)
            raise OSError(str(error)) from None
        self._health.answered()
        return found

    def close(self) -> None:
        self._client.close()


def size_of(answer: Any) -> int:
    """The size that a server answers with; its error, unless it is about the kind of a value."""
    if isinstance(answer, Exception):
        if not str(answer).startswith("WRONGTYPE"):
            raise answer
        return 0
    return int(answer)
