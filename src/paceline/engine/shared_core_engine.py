"""The engine of a front end that shares its core with front ends in other processes."""

from dataclasses import replace

from paceline.core.arrays import F64
from paceline.engine.api import Report
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.metrics import Metrics
from paceline.engine.loop.ports import Core
from paceline.engine.streaming import StreamingEngine


class SharedEngine(StreamingEngine):
    """Its figures and limits are those of all engines together.

    `metrics` has the cells of each front end and each engine: [front ends, engines, cells].
    `figures` are two of the core: its requests of all front ends, and how often it died.
    """

    def __init__(self, core: Core, frontend: Frontend, metrics: F64, figures: F64) -> None:
        super().__init__(core, frontend)
        self._metrics, self._core_figures = metrics, figures

    def _open_in_core(self) -> int:
        return max(int(self._core_figures[0]), super()._open_in_core())

    async def stats(self, engine: int = 0) -> Report:
        figures = await self._figures.of(engine)
        report = Metrics(self._metrics[:, engine].sum(axis=0)).report(figures)
        return (
            report if "crashes" in figures else replace(report, crashes=int(self._core_figures[1]))
        )
