"""The pages of reports."""

import re

from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.results.page import simulation_page
from paceline.simulator.server import SimulatedServer
from tests.simulator.support import load, model


def test_a_page_stands_alone() -> None:
    work = load(20, tenants={"<a>": 1, "b": 1}).workload()
    report = SimulationReport.of(SimulatedServer(model(), work.requests).run(), {"ttft": 100.0})
    text = simulation_page("a title", report, {"ttft": 100.0}, ["about <it>"])
    assert text.count("<svg") == 4
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?://", text), "nothing is fetched"
    assert "prefers-color-scheme: dark" in text
    assert "about &lt;it&gt;" in text
    assert "&lt;a&gt;" in text
    assert "goodput" in text
    summary = text[: text.index("<h2>Over time</h2>")]
    assert summary.count('<div class="charts">') == 1, "figures stand beside each other"
    assert summary.count("<svg") == 1
    assert "left waiting by a step at most" in summary
