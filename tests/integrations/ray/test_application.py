"""Replicas under Ray Serve: settings, the manifest for KubeRay, and a cluster of two nodes."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import kubernetes_validate
import pytest
import yaml

from paceline import LLM, SamplingParams
from paceline.core.errors import ConfigError
from paceline.integrations.ray import app
from paceline.integrations.ray.application import API_KEYS, RaySettings, read
from paceline.server.settings import ServerSettings
from paceline.wiring.settings import pop_settings
from tests.integrations.ray.ray_cluster import LONGEST, MODEL, REPLICA, RayCluster, ray_cluster
from tests.test_ops import resource
from tests.wiring.support import until

GROUPS, TURNS = 8, 3
LONG_TESTS = "PACELINE_RAY_TESTS"  # this variable runs the tests that take a minute
long = pytest.mark.skipif(not os.environ.get(LONG_TESTS), reason=f"{LONG_TESTS} is not set")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two replicas with the same random weights."""
    with ray_cluster(tmp_path_factory.mktemp("ray")) as made:
        made.serve(min_replicas=2)
        yield made


def prompt_of(group: int, turn: int) -> str:
    return f"{group}: the first words of all prompts of this group, " * 2 + str(turn)


def test_settings_are_checked_before_replicas_start() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        app({"max_num_seq": 4})
    with pytest.raises(ConfigError, match="on_core_crash"):
        app({"on_core_crash": "hope"})


def test_the_routes_are_those_of_the_server(cluster: RayCluster) -> None:
    with LLM(str(cluster.folder), **MODEL) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        (alone,) = llm.generate(["a prompt"], params, progress=False)
    (whole,) = cluster.post("a prompt", max_tokens=12).json()["choices"]
    with cluster.stream("a prompt", max_tokens=12) as events:
        streamed = "".join(one["choices"][0]["text"] for one in events)
    assert whole["text"] == streamed == alone.outputs[0].text
    refused = cluster.post("a prompt", max_tokens=-1)
    assert (refused.status_code, "max_tokens" in refused.text) == (400, True)
    large = cluster.post("a" * 5_000_000)
    assert (large.status_code, "body_bytes" in large.text) == (413, True)
    assert cluster.http.get("/nothing").json()["error"]["code"] == "unknown_route"


def test_groups_of_prompts_stay_together(cluster: RayCluster) -> None:
    """Eight at once are spread over the replicas; what follows them is not."""

    def answered(group: int) -> str:
        return cluster.post(prompt_of(group, 0), max_tokens=24).headers[REPLICA]

    with ThreadPoolExecutor(GROUPS) as clients:
        first = list(clients.map(answered, range(GROUPS)))
    assert len(set(first)) == 2
    for turn in range(1, TURNS):
        for group in range(GROUPS):
            answer = cluster.post(prompt_of(group, turn), max_tokens=1)
            assert answer.headers[REPLICA] == first[group]
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= len(prompt_of(group, turn)) - 32


def test_a_client_that_hangs_up_ends_its_request(cluster: RayCluster) -> None:
    with cluster.stream("hang up", max_tokens=LONGEST - 100) as events:
        next(events)
    until(lambda: cluster.metric('vllm:request_success_total{engine="0",finished_reason="abort"'))


def test_some_requests_concern_all_replicas(cluster: RayCluster) -> None:
    answers = [cluster.post(prompt_of(group, TURNS), max_tokens=1) for group in range(GROUPS)]
    assert len({one.headers[REPLICA] for one in answers}) == 2
    for one in answers:
        assert "finished" in cluster.http.get(f"/requests/{one.json()['id']}/explain").text
    assert cluster.http.post("/pause").status_code == 200
    assert all(cluster.http.get("/is_paused").json()["is_paused"] for _ in range(4))
    assert cluster.http.post("/resume").status_code == 200
    body = {"input": "keep this", "max_output_tokens": 2}
    kept = cluster.http.post("/v1/responses", json=body).json()
    for _ in range(4):
        assert cluster.http.get(f"/v1/responses/{kept['id']}").json()["id"] == kept["id"]


@long
def test_a_replica_dies_under_load(cluster: RayCluster) -> None:
    """Each request is answered, by another replica if it had not begun, or ends with an error."""

    def outcome(number: int) -> str:
        if number % 2:
            answer = cluster.post(f"{number} whole", max_tokens=60)
            assert len(answer.json()["choices"][0]["text"]) > 0
            return "whole"
        with cluster.stream(f"{number} stream", max_tokens=400) as events:
            last = list(events)[-1]
        if "error" in last:
            assert last["error"]["code"] == "replica_died"
            return "broken"
        assert last["choices"][0]["finish_reason"] == "length"
        return "streamed"

    with ThreadPoolExecutor(16) as clients:
        pending = clients.map(outcome, range(32))
        until(lambda: cluster.metric("vllm:num_requests_running") >= 8)
        cluster.obey(kill=cluster.obey(engines=1)[0])
        outcomes = list(pending)
    assert outcomes.count("whole") == 16
    assert 1 <= outcomes.count("broken") < 16


@long
def test_replicas_are_added_and_removed(cluster: RayCluster) -> None:
    """One replica, two under load, and one again, while a stream goes on."""
    cluster.serve(
        min_replicas=1,
        max_replicas=2,
        target_ongoing_requests=2,
        upscale_delay_s=1,
        downscale_delay_s=1,
        drain_s=60,
    )
    until(lambda: cluster.obey(running=1) == 1)
    with ThreadPoolExecutor(9) as clients:

        def ask(number: int) -> None:
            while cluster.obey(running=1) < 2:
                assert cluster.post(f"{number} load", max_tokens=300).status_code == 200

        list(clients.map(ask, range(8)))
    streams = [cluster.stream(prompt_of(group, 0), max_tokens=200) for group in range(GROUPS)]
    with ExitStack() as opened:
        events = [opened.enter_context(one) for one in streams]
        for one in events:
            next(one)
        until(lambda: cluster.obey(running=1) == 2)
        endings = [[*one][-1] for one in events]
    assert all(one["choices"][0]["finish_reason"] == "length" for one in endings)
    until(lambda: cluster.obey(running=1) == 1)
    assert cluster.post("after", max_tokens=1).status_code == 200


@long
def test_a_replica_drains(cluster: RayCluster) -> None:
    """The application is deleted; the stream that is open goes on to its end."""
    with cluster.stream("drain", max_tokens=500) as events:
        next(events)
        cluster.obey(stop=1)
        last = [*events][-1]
    assert last["choices"][0]["finish_reason"] == "length"
    until(lambda: cluster.http.get("/health").status_code == 404)


def test_ray_accepts_the_application_of_the_ray_service() -> None:
    spec = resource("RayService")["spec"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert application["import_path"] == "paceline.integrations.ray:app"
    given = read(application["args"])
    ray: RaySettings = pop_settings(RaySettings, given)
    ServerSettings(drain_s=given["drain_s"], log_format=given["log_format"])
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["maxReplicas"] == ray.max_replicas
    groups = (spec["rayClusterConfig"]["headGroupSpec"], workers)
    for number, group in enumerate(groups):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"group-{number}"},
            "spec": group["template"]["spec"],
        }
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    worker = workers["template"]["spec"]
    assert worker["terminationGracePeriodSeconds"] > given["drain_s"]
    (container,) = worker["containers"]
    reserved = ray.num_cpus + ray.entries  # an entry reserves one
    assert int(container["resources"]["requests"]["cpu"]) >= reserved


def test_texts_of_a_command_line_get_their_types() -> None:
    given = {"max_num_seqs": "64", "num_gpus": "0.5", "docs": "true", "model": "7", "aliases": "8"}
    typed = {"max_num_seqs": 64, "num_gpus": 0.5, "docs": True, "model": "7", "aliases": ("8",)}
    assert read(given) == typed
    assert read({"aliases": ["a", "b"], "device": "cpu"}) == {
        "aliases": ("a", "b"),
        "device": "cpu",
    }


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEYS, "one two")
    assert read({})["api_keys"] == ("one", "two")
    assert read({"api_keys": ["three"]})["api_keys"] == ("three",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_replicas": 0},
        {"min_replicas": 2, "max_replicas": 1},
        {"num_gpus": -1.0},
        {"entries": "two"},
    ],
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        RaySettings(**wrong)
