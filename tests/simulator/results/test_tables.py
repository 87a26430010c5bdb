"""Tables for a terminal."""

from io import StringIO

from rich.console import Console

from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.results.tables import show
from paceline.simulator.server import SimulatedServer
from tests.simulator.support import load, model


def test_a_report_is_printed() -> None:
    work = load(20, tenants={"a": 1, "[/b]": 1}).workload()
    report = SimulationReport.of(SimulatedServer(model(), work.requests).run(), {"ttft": 100.0})
    out = StringIO()
    show(report, {"ttft": 100.0}, Console(file=out, width=120))
    for expected in ("20 of 20 completed", "time to first token", "within ttft 100 ms", "[/b]"):
        assert expected in out.getvalue()
