"""The dashboard of Grafana: it knows every field, and every query has an answer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from tests.promql import SCRAPED, Query, SampleKind, kinds_of
from tests.server.support import Site, on_its_own_server

BOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "ops" / "grafana" / "paceline.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
# A value for each variable; those that begin with $__ are Grafana's own.
VARIABLES = {"$__rate_interval": "1m", "$model_name": ".*", "$engine": "0|1"}
PROCESSES = ("paceline_core", "paceline_core_0", "paceline_front_end_0")


def kinds_of_a_server() -> dict[str, SampleKind]:
    """The metrics of a server that drafts and may have adapters, and of its other processes."""
    texts: list[str] = []

    async def scenario(site: Site) -> None:
        await site.post("/v1/completions", prompt="the the the", max_tokens=40, ignore_eos=True)
        texts.append((await site.http.get("/metrics")).text)

    on_its_own_server(scenario, max_loras=2, num_speculative_tokens=3)
    found = kinds_of(text_string_to_metric_families(texts[0]))
    of_processes = {name: kind for name, kind in found.items() if name.startswith("process_")}
    for prefix in PROCESSES:
        found |= {f"{prefix}_{name}": kind for name, kind in of_processes.items()}
    return found


def filled(text: str) -> str:
    """A query with values in place of its variables."""
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return text


def test_every_query_has_an_answer_with_the_labels_of_its_legend() -> None:
    kinds = kinds_of_a_server()
    for panel in PANELS:
        for target in panel["targets"]:
            labels = Query(filled(target["expr"]), kinds).labels
            legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert labels.issuperset(legend), panel["title"]
    source, *queried = BOARD["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    for one in queried:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"])
        assert asked
        assert asked[2] in Query(filled(asked[1]), kinds).labels


def test_every_variable_is_defined() -> None:
    used = set(re.findall(r"\$[a-z_]\w*", json.dumps(BOARD)))
    assert used == VARIABLES.keys() | {"$__all"}
    defined = {f"${one['name']}" for one in BOARD["templating"]["list"]} - {"$datasource"}
    assert defined == {name for name in VARIABLES if not name.startswith("$__")}
    uids = {one["datasource"]["uid"] for one in (*PANELS, *BOARD["templating"]["list"][1:])}
    assert uids == {"${datasource}"}


SERVED = SCRAPED | {"engine"}
KINDS = {
    "running": SampleKind("gauge", SERVED),
    "ended_total": SampleKind("counter", SERVED | {"reason"}),
    "took_bucket": SampleKind("histogram", SERVED | {"le"}),
}


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("running", SERVED),
        ('sum by (reason) (rate(ended_total{engine="0"}[1m]))', {"reason"}),
        ("histogram_quantile(0.5, rate(took_bucket[1m]))", SERVED),
        ("sum(rate(ended_total[1m])) / sum(running)", set()),
        ("rate(ended_total[1m]) and on (job) running", SERVED | {"reason"}),
        ("sum by (reason) (ended_total) / on () group_left () sum(running)", {"reason"}),
        ('label_replace(running, "new", "$1", "engine", "(.*)")', SERVED | {"new"}),
    ],
)
def test_labels_of_queries(text: str, labels: set[str]) -> None:
    assert Query(text, KINDS).labels == labels


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("walking", "no metric matches walking"),
        ('running{reason="stop"}', "has no reason"),
        ("rate(running[1m])", "not a counter"),
        ("sum by (reason) (running)", "it has only"),
        ("histogram_quantile(0.5, sum by (engine) (rate(took_bucket[1m])))", "no buckets"),
        ("rate(ended_total[1m]) / running", "on the other"),
        ("ended_total and on (reason) running", "not on both sides"),
    ],
)
def test_mistakes_in_queries(text: str, mistake: str) -> None:
    with pytest.raises(AssertionError, match=mistake):
        Query(text, KINDS)


# -- Grafana ----------------------------------------------------------------


def test_grafana_knows_every_field() -> None:
    """Its models leave out what they do not know."""
    register_default_plugins()
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD)))
    assert left_out(BOARD, known) == []
    assert left_out({"title": "a", "titel": "b"}, {"title": "a"}) == ["/titel"]


def left_out(given: Any, known: Any, place: str = "") -> list[str]:
    """The places in which something that is given is not known, or is something else."""
    match given, known:
        case dict(), dict():
            pairs = [(f"{place}/{name}", one, known.get(name)) for name, one in given.items()]
        case list(), list() if len(given) == len(known):
            pairs = [
                (f"{place}/{n}", *pair) for n, pair in enumerate(zip(given, known, strict=True))
            ]
        case _:
            return [] if given == known else [place]
    return [one for name, *pair in pairs for one in left_out(*pair, name)]


def test_every_panel_has_a_place_of_its_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
