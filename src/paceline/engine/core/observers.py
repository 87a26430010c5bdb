"""Several observers of an engine, or none."""

from collections.abc import Sequence

from paceline.core.plan import Outputs, Plan
from paceline.engine.core.ports import StepObserver


class NotObserved(StepObserver):
    """Does nothing."""


NOT_OBSERVED = NotObserved()


class SeveralObservers(StepObserver):
    """Passes everything on to each of several observers."""

    def __init__(self, observers: Sequence[StepObserver]) -> None:
        self._observers = observers

    def planning(self) -> None:
        for one in self._observers:
            one.planning()

    def planned(self, plan: Plan) -> None:
        for one in self._observers:
            one.planned(plan)

    def launched(self, plan: Plan) -> None:
        for one in self._observers:
            one.launched(plan)

    def landed(self, plan: Plan) -> None:
        for one in self._observers:
            one.landed(plan)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        for one in self._observers:
            one.committed(plan, outputs)

    def changed(self) -> None:
        for one in self._observers:
            one.changed()

    def close(self) -> None:
        for one in self._observers:
            one.close()


def all_of(observers: Sequence[StepObserver]) -> StepObserver:
    match [one for one in observers if one is not NOT_OBSERVED]:
        case []:
            return NOT_OBSERVED
        case [one]:
            return one
        case several:
            return SeveralObservers(several)
