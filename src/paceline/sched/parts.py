"""The parts that a scheduler is built of."""

from dataclasses import dataclass

from paceline.core.config import Config
from paceline.sched.arrivals import Arrivals
from paceline.sched.departures import Departures
from paceline.sched.state import SchedulerState
from paceline.sched.stops import StopWatch


@dataclass(frozen=True, slots=True)
class SchedulerParts:
    """The state, and what changes it; disciplines and features take what they need of it."""

    state: SchedulerState
    arrivals: Arrivals
    departures: Departures
    stops: StopWatch

    @staticmethod
    def of(config: Config) -> "SchedulerParts":
        state, stops = SchedulerState(config), StopWatch()
        return SchedulerParts(state, Arrivals(state, stops), Departures(state, stops), stops)
