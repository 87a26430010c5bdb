import errno
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, file_download

from paceline.core.errors import ConfigError
from paceline.hub import repository
from paceline.hub.pull import accept
from paceline.hub.repository import fetch_repository
from paceline.hub.repository_files import FetchError, Progress, RepositoryName, silent
from tests.hub.support import Hub, configured, serving

FILES = {
    "README.md": b"read me",
    "config.json": b"{}",
    "consolidated.safetensors": b"the same again",
    "generation_config.json": b"{ }",
    "model-00001-of-00002.safetensors": b"1" * 5000,
    "model-00002-of-00002.safetensors": b"2" * 7000,
    "model.safetensors.index.json": b"{  }",
    "onnx/model.safetensors": b"in a folder",
    "model_fp16/x.safetensors": b"in a folder whose name matches",
    "pytorch_model.bin": b"pickled",
    "tokenizer.json": b"{   }",
    "chat_template.jinja": b"{{ messages }}",
}
KEPT = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]
TOTAL = sum(len(FILES[name]) for name in KEPT)
SECOND = "model-00002-of-00002.safetensors"

PULL = """
import sys
from paceline.hub.pull import pull

print(pull(sys.argv[1]))
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
    with serving(Hub(files=dict(FILES))) as hub, configured(hub, tmp_path):
        yield hub


def fetch(
    name: str = "owner/small",
    progress: Progress = silent,
    check: Callable[[Path], None] = accept,
) -> Path:
    parsed = RepositoryName.parse(name)
    assert parsed is not None
    return fetch_repository(parsed, progress, check)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_files_that_an_engine_needs_are_fetched_and_no_others(hub: Hub, tmp_path: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    folder = fetch(progress=lambda *report: reports.append(report))
    assert folder == tmp_path / "models--owner--small" / "snapshots" / hub.commit
    assert names(folder) == hub.fetched() == KEPT
    assert all((folder / name).read_bytes() == FILES[name] for name in KEPT)
    assert reports[-1] == (TOTAL, TOTAL)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_a_copy_in_the_cache_is_used_while_its_commit_is_current(hub: Hub) -> None:
    folder = fetch()
    hub.asked.clear()
    reports: list[object] = []
    assert fetch(progress=lambda *report: reports.append(report)) == folder
    assert hub.fetched() == []
    assert reports == []


def test_modules_of_sentence_transformers_are_fetched(hub: Hub) -> None:
    modules = {
        "modules.json": b"[]",
        "1_Pooling/config.json": b'{ "a": 1}',
        "2_Dense/config.json": b'{ "b": 1}',
        "2_Dense/model.safetensors": b"3" * 50,
    }
    hub.files |= {**modules, "2_Dense/pytorch_model.bin": b"pickled", "openvino/config.json": b"{}"}
    folder = fetch()
    assert all((folder / name).read_bytes() == content for name, content in modules.items())
    assert sorted(hub.fetched()) == sorted([*KEPT, *(name.rpartition("/")[2] for name in modules)])


def test_a_new_commit_is_fetched_into_a_folder_of_its_own(hub: Hub) -> None:
    old = fetch()
    hub.asked.clear()
    hub.commit = "beef" * 10
    hub.files["config.json"] = b'{"new": true}'
    new = fetch()
    assert (new / "config.json").read_bytes() == b'{"new": true}'
    assert (old / "config.json").read_bytes() == b"{}"
    assert hub.fetched() == ["config.json"]


def test_a_copy_in_the_cache_is_used_while_the_hub_is_out_of_reach(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch() == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == folder


def test_an_incomplete_copy_is_not_used_without_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fetch() / SECOND).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match=r"owner/small is not in .*, and HF_HUB_OFFLINE is set"):
        fetch()


def test_a_copy_of_another_program_may_lack_a_file(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--owner--small"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(hub.commit)
    (folder / "snapshots" / hub.commit).mkdir(parents=True)
    (folder / "snapshots" / hub.commit / "config.json").write_bytes(b"{}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match=r"owner/small cannot be run: it has no tokenizer\.json"):
        fetch()


def test_a_broken_transfer_continues_where_it_broke(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cut_after[SECOND] = [3000]
    folder = fetch()
    assert (folder / SECOND).read_bytes() == FILES[SECOND]
    ranges = [ranged for _, path, ranged, _ in hub.asked if path.endswith(SECOND) and ranged]
    assert ranges == ["bytes=3000-"]


def test_a_second_attempt_fetches_what_the_first_did_not(hub: Hub) -> None:
    fetch()
    folder = fetch()
    (folder / SECOND).resolve().unlink()
    (folder / SECOND).unlink()
    hub.asked.clear()
    reports: list[tuple[int, int | None]] = []
    fetch(progress=lambda *report: reports.append(report))
    assert hub.fetched() == [SECOND]
    assert reports[-1] == (7000, 7000)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_repository_that_cannot_be_run_is_refused_before_the_download(
    hub: Hub, missing: str
) -> None:
    del hub.files[missing]
    with pytest.raises(FetchError, match=f"owner/small cannot be run: it has no {missing}"):
        fetch()
    assert hub.fetched() == []


def test_weights_in_another_layout_do_not_count(hub: Hub) -> None:
    hub.files = {n: c for n, c in FILES.items() if not n.startswith("model-")}
    with pytest.raises(FetchError, match=r"has no model\*\.safetensors"):
        fetch()


def test_a_model_that_cannot_be_run_is_refused_before_its_weights_are_downloaded(
    hub: Hub,
) -> None:
    def refuse(config: Path) -> None:
        raise ConfigError(f"not supported: {config.read_text()}")

    with pytest.raises(ConfigError, match=r"not supported: \{\}"):
        fetch(check=refuse)
    assert hub.fetched() == ["config.json"]


# -- GGUF files -------------------------------------------------------------

SMALL, LARGE = b"GGUF" + b"4" * 3000, b"GGUF" + b"8" * 9000


@pytest.fixture
def quantized(hub: Hub) -> Hub:
    hub.files = {"README.md": b"x", "small-Q4_K_M.gguf": SMALL, "more/small-Q8_0.gguf": LARGE}
    return hub


@pytest.mark.parametrize("chosen", ["Q8_0", "q8_0", "small-Q8_0.gguf", "more/small-Q8_0.gguf"])
def test_one_gguf_file_of_a_repository_is_fetched(quantized: Hub, chosen: str) -> None:
    reports: list[tuple[int, int | None]] = []
    file = fetch(f"owner/small:{chosen}", lambda *report: reports.append(report))
    assert file.read_bytes() == LARGE
    assert quantized.fetched() == ["small-Q8_0.gguf"]
    assert reports[-1] == (len(LARGE), len(LARGE))


def test_a_gguf_file_in_the_cache_is_used_while_the_hub_is_out_of_reach(
    quantized: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fetch("owner/small:Q4_K_M")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("owner/small:Q4_K_M") == file
    with pytest.raises(FetchError, match=r"has no GGUF file 'Q8_0'; choose one of: small-Q4_K_M"):
        fetch("owner/small:Q8_0")


def test_a_gguf_file_of_a_repository_that_is_not_in_the_cache_needs_the_hub(
    quantized: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match=r"owner/small:Q8_0 is not in .*HF_HUB_OFFLINE is set"):
        fetch("owner/small:Q8_0")


def test_a_repository_with_gguf_files_alone_says_how_to_name_one(quantized: Hub) -> None:
    with pytest.raises(FetchError, match=r"as in owner/small:more/small-Q8_0\.gguf; choose one of"):
        fetch()
    assert quantized.fetched() == []


# -- errors -----------------------------------------------------------------


def test_an_unknown_repository_is_named(hub: Hub) -> None:
    with pytest.raises(FetchError, match=r"has no repository owner/other, or .*HF_TOKEN"):
        fetch("owner/other")


def test_an_unknown_revision_is_named(hub: Hub) -> None:
    with pytest.raises(FetchError, match="owner/small has no revision 'v2'"):
        fetch("owner/small@v2")


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1"])
def test_a_revision_is_fetched_by_its_name(hub: Hub, revision: str) -> None:
    hub.revisions = ("main", revision)
    assert names(fetch(f"owner/small@{revision}")) == KEPT


def test_a_commit_is_fetched_by_its_hash(hub: Hub) -> None:
    assert names(fetch(f"owner/small@{hub.commit}")) == KEPT


def test_a_gated_repository_says_what_to_do(hub: Hub) -> None:
    hub.gated = True
    with pytest.raises(FetchError, match=r"is gated: accept its conditions on http.*/owner/small"):
        fetch()


def test_a_private_repository_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "secret"
    with pytest.raises(FetchError, match="set HF_TOKEN to a token that may read it"):
        fetch()
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert names(fetch()) == KEPT
    assert hub.asked[-1][3] == "Bearer secret"


def test_a_hub_out_of_reach_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:9 cannot be reached .*HF_ENDPOINT"):
        fetch()


def test_without_network_a_missing_model_names_the_switch(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match="HF_HUB_OFFLINE is set"):
        fetch()


def test_a_failing_hub_is_named_with_its_status(hub: Hub) -> None:
    hub.fail_with = [501] * 20
    with pytest.raises(FetchError, match="answered with status 501 for owner/small"):
        fetch()


def test_a_file_that_the_hub_does_not_deliver_is_reported(hub: Hub) -> None:
    hub.fail_files_with = 418
    with pytest.raises(FetchError, match="answered with status 418 for owner/small"):
        fetch()


def test_a_disk_without_room_is_reported_before_the_download(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(repository.shutil, "disk_usage", lambda _: SimpleNamespace(free=TOTAL - 1))
    with pytest.raises(FetchError, match=r"the disk is full: owner/small needs 0\.00 GB.*HF_HOME"):
        fetch()
    assert hub.fetched() == []


def test_a_disk_that_runs_full_is_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_download, "http_get", full)
    with pytest.raises(FetchError, match="the disk is full"):
        fetch()


def test_the_environment_of_huggingface_is_honoured(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    home = tmp_path / "home"
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_TOKEN": "secret"}
    environ = {**os.environ, **own, "PYTHONPATH": os.pathsep.join(sys.path)}
    environ.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", PULL, "owner/small"]
    folder = subprocess.check_output(command, env=environ, text=True).strip()
    assert Path(folder) == home / "hub" / "models--owner--small" / "snapshots" / hub.commit
    environ["HF_HUB_OFFLINE"] = "1"
    hub.asked.clear()
    assert subprocess.check_output(command, env=environ, text=True).strip() == folder
    assert hub.asked == []
