"""Other weights, sleep and wake-up of a model in a script."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from paceline.engine.loop.messages import Mode, Question, Verb
from paceline.engine.offline.offline import OfflineEngine


class ResidentEngine(OfflineEngine):
    """A model to call from a script, whose weights and memory can be changed.

    Requests that are open, from `enqueue`, are aborted, waited for, or kept: `mode` says which.
    """

    def _update_weights(self, path: str, version: str, mode: Mode) -> str:
        """Use the weights of a folder or a file; "": those of the start. Returns their version."""
        return self._change("update_weights", path=path, version=version, mode=mode)

    @property
    def weight_version(self) -> str:
        """The version of the weights in use."""
        return self._engine.answer(Question("weight_version"))

    def sleep(self, level: int = 1, mode: Mode = "abort") -> None:
        """Release the memory of KV and of weights until `wake_up`.

        Level 1 keeps the weights in host memory. Level 2 drops them: after the wake-up, requests
        are refused until `update_weights`. Level 0 keeps everything and runs no step. Open requests
        end (abort), or finish first (wait), or go on after the wake-up (keep). On a GPU, set
        `enable_sleep_mode`.
        """
        self._change("sleep", level=level, mode=mode)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again: all of it, or that of the tags "weights" and "kv_cache"."""
        self._change("wake_up", tags=None if tags is None else [*tags])

    @property
    def is_sleeping(self) -> bool:
        """Is memory of any tag released?"""
        return self._engine.answer(Question("is_sleeping"))

    def _change(self, verb: Verb, **asked: Any) -> Any:
        """Change the model on the engine's thread, while open requests run as the change allows."""
        answer: Future[Any] = self._engine.answer(Question(verb, json.dumps(asked)))
        while not answer.done():
            self._engine.rest()
            self._turn()
        return answer.result()
