"""The components that a scheduler is built from."""

from dataclasses import dataclass

from paceline.core.settings.config import Config
from paceline.sched.commit.stops import StopWatch
from paceline.sched.lifecycle.arrivals import Arrivals
from paceline.sched.lifecycle.departures import Departures
from paceline.sched.state import SchedulerState
from paceline.sched.transfers.loads import Loads


@dataclass(frozen=True, slots=True)
class SchedulerComponents:
    """The state and the classes that change it. Disciplines and hooks take the ones they need."""

    state: SchedulerState
    arrivals: Arrivals
    departures: Departures
    stops: StopWatch
    loads: Loads

    @staticmethod
    def of(config: Config) -> "SchedulerComponents":
        state, stops = SchedulerState(config), StopWatch()
        arrivals, departures = Arrivals(state, stops), Departures(state, stops)
        loads = Loads(config.loading, state, arrivals)
        return SchedulerComponents(state, arrivals, departures, stops, loads)
