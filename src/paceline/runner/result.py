"""Builds the result of a step, which the scheduler commits."""

import numpy as np
from torch import Tensor

from paceline.core.plan import Candidates, Failed, Plan, StepResult
from paceline.core.request import Request
from paceline.runner.sampler import TokenScores, score
from paceline.runner.sampling_controls import Controls


class ResultBuilder:
    """Collects what a step sampled, by row of its plan."""

    def __init__(self, plan: Plan, wanted: np.ndarray, ids: Tensor, taken: Tensor) -> None:
        rows = len(plan.rows)
        self._plan, self._wanted = plan, wanted
        self._ids = np.full((rows, ids.shape[1]), -1, np.int32)
        self._ids[wanted] = ids.numpy()
        self._count = np.zeros(rows, np.int32)
        self._count[wanted] = taken.numpy()
        self._logprob: np.ndarray | None = None
        self._best: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # candidates by row
        self._failed: tuple[Failed, ...] = ()

    def fail(self, bad: Tensor) -> None:
        """Mark rows that sample and have no finite logits. They yield no token."""
        rows = self._wanted[bad.numpy()]
        if not len(rows):
            return
        self._ids[rows], self._count[rows] = -1, 0
        step, labels = self._plan.step, self._plan.rows.labels
        self._failed = tuple(
            Failed(row, f"the logits of {labels[row]!r} in step {step} are not finite")
            for row in rows.tolist()
        )

    def add_logprobs(self, controls: Controls, scores: tuple[TokenScores | None, ...]) -> None:
        """Add log-probabilities of sampled tokens, and alternatives to the first one."""
        if controls.scored is None:
            return
        for place, one in enumerate(scores):
            assert one is not None
            for index, row in enumerate(controls.scored.rows.tolist()):
                self._given()[self._wanted[row], place] = float(one.given[index])
                if place == 0:
                    self._best[int(self._wanted[row])] = possible(one, index)

    def add_silent_logprobs(self, row: int, raw: Tensor, ids: Tensor, request: Request) -> None:
        """The same for a row of a family that is reported only at its end."""
        for place in range(int(self._count[self._wanted[row]])):
            here = slice(place, place + 1)
            found = score(raw[here], ids[here], max(request.candidates, 1))
            self._given()[self._wanted[row], place] = float(found.given[0])
            if place == 0:
                self._best[int(self._wanted[row])] = possible(found, 0)

    def _given(self) -> np.ndarray:
        if self._logprob is None:
            self._logprob = np.zeros(self._ids.shape, np.float32)
        return self._logprob

    def build(self) -> StepResult:
        if not self._best:
            return StepResult(self._ids, self._count, self._logprob, failed=self._failed)
        most = max(len(ids) for ids, _ in self._best.values())
        found = Candidates(
            np.full((len(self._ids), most), -1, np.int32),
            np.full((len(self._ids), most), -np.inf, np.float32),
        )
        for row, (ids, values) in self._best.items():
            found.ids[row, : len(ids)] = ids
            found.logprob[row, : len(ids)] = values
        return StepResult(self._ids, self._count, self._logprob, found, failed=self._failed)


def possible(scores: TokenScores, index: int) -> tuple[np.ndarray, np.ndarray]:
    """The alternatives of a scored row, without tokens that a mask does not allow."""
    ids, values = scores.ids[index].numpy(), scores.values[index].numpy()
    kept = values > -np.inf  # the first ones: they are in descending order
    return (ids, values) if kept.all() else (ids[kept], values[kept])
