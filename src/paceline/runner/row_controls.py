"""The sampling controls of the rows of a step, kept from step to step."""

import numpy as np

from paceline.core.plan import Rows
from paceline.runner.sampler import Sampler
from paceline.runner.sampling_controls import Controls


class RowControls:
    """Makes controls anew only when other slots sample than in the step before."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._rows: Rows | None = None  # those that the controls are for
        self._slots: list[int] = []  # of these rows, where they sample
        self._controls: Controls | None = None

    def forget(self) -> None:
        """Slots have changed hands."""
        self._rows = self._controls = None

    def of(self, rows: Rows, wanted: np.ndarray) -> Controls:
        """The controls of the rows that sample, again the same ones for the same slots."""
        if self._rows is not rows or self._controls is None:
            slots = rows.slot[wanted].tolist()
            if self._controls is None or self._slots != slots:
                self._controls, self._slots = self._sampler.controls(slots), slots
            self._rows = rows
        return self._controls
