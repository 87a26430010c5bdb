"""What each of several engines has of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.wiring.processes import engine_replicas
from paceline.wiring.processes.engine_replicas import places, settings_of, shares, visible_gpus


@pytest.mark.parametrize(
    ("cpus", "engines", "expected"),
    [
        ([0, 1, 2, 3], 2, [(0, 1), (2, 3)]),
        ([4, 5, 6, 7, 9], 2, [(4, 5), (6, 7, 9)]),
        ([2, 3], 3, [(2,), (3,), (2,)]),
        ([], 2, [(), ()]),
    ],
)
def test_engines_share_the_cores(
    cpus: list[int], engines: int, expected: list[tuple[int, ...]]
) -> None:
    assert shares(cpus, engines) == expected


def test_the_gpus_are_those_that_are_visible_or_all(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path / "none") == []
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-abc"}, tmp_path) == ["3", "GPU-abc"]
    for hidden in ("", "-1"):
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": hidden}, tmp_path) == []


def test_each_engine_has_gpus_of_its_own_or_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_replicas, "usable_cpus", lambda: [0, 1])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [one.cpus for one in places(2, "cpu", 1)] == [(0,), (1,)]
    assert [dict(one.variables) for one in places(2, "auto", 1)] == [
        {"CUDA_VISIBLE_DEVICES": "4"},
        {"CUDA_VISIBLE_DEVICES": "5"},
    ]
    assert [one.variables["CUDA_VISIBLE_DEVICES"] for one in places(2, "cuda", 2)] == ["4,5", "6,7"]
    with pytest.raises(ConfigError, match="needs 6 GPUs, but there are 4"):
        places(3, "auto", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    assert [one.variables["CUDA_VISIBLE_DEVICES"] for one in places(2, "auto", 1)] == ["0", "0"]


def test_ports_and_files_are_numbered() -> None:
    events = {"enable_kv_cache_events": True, "replay_endpoint": "tcp://*:6000"}
    extra = {"side_channel_port": 7000}
    transfer = {"kv_connector": "nixl", "engine_id": "a", "kv_connector_extra_config": extra}
    given: dict[str, Any] = {
        "kv_events_config": json.dumps(events),
        "kv_transfer_config": transfer,
        "record": "/tmp/run.jsonl",
        "trace": "/tmp/trace.json",
        "max_num_seqs": 4,
    }
    found = settings_of(given, 2)
    assert json.loads(found.pop("kv_events_config")) == events | {
        "endpoint": "tcp://*:5559",
        "replay_endpoint": "tcp://*:6002",
        "data_parallel_rank": 2,
    }
    assert json.loads(found.pop("kv_transfer_config")) == {
        "kv_connector": "nixl",
        "engine_id": "a_dp2",
        "kv_connector_extra_config": {"side_channel_port": 7002},
    }
    assert found == {
        "record": "/tmp/run-engine2.jsonl",
        "trace": "/tmp/trace.json",
        "trace_name": "engine 2",
        "max_num_seqs": 4,
    }
    named = settings_of({"kv_events_config": '{"endpoint": "ipc:///tmp/a"}'}, 1)
    assert json.loads(named["kv_events_config"])["endpoint"] == "ipc:///tmp/a_dp1"
    assert settings_of({"kv_transfer_config": transfer | {"engine_id": ""}}, 0)
