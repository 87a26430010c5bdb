import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.hub import http, repository
from paceline.hub.errors import FetchError
from paceline.hub.http import Site
from paceline.hub.progress import silent
from paceline.hub.repository import NAME, fetch_repository
from tests.hub.support import Hub, serving

FILES = {
    "README.md": b"read me",
    "config.json": b"{}",
    "consolidated.safetensors": b"the same again",
    "generation_config.json": b"{}",
    "model-00001-of-00002.safetensors": b"1" * 5000,
    "model-00002-of-00002.safetensors": b"2" * 7000,
    "model.safetensors.index.json": b"{}",
    "onnx/model.safetensors": b"in a folder",
    "model/../../escape.safetensors": b"out of the folder",
    "pytorch_model.bin": b"pickled",
    "tokenizer.json": b"{}",
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


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    monkeypatch.setattr(http, "PAUSES_S", ())
    with serving(Hub(files=dict(FILES))) as hub:
        yield hub


def fetch(hub: Hub, cache: Path, name: str = "owner/small") -> Path:
    return fetch_repository(name, cache, silent, Site(hub.address))


def test_what_an_engine_needs_is_fetched_and_no_more(hub: Hub, tmp_path: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    folder = fetch_repository(
        "owner/small", tmp_path, lambda *report: reports.append(report), Site(hub.address)
    )
    assert sorted(file.name for file in folder.iterdir()) == KEPT
    assert all((folder / name).read_bytes() == FILES[name] for name in KEPT)
    assert reports[-1] == (TOTAL, TOTAL)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    asked = [path.rpartition("/")[2] for path, _, _ in hub.asked[1:]]
    assert asked[-2:] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert not (tmp_path / "escape.safetensors").exists()


def test_a_complete_folder_is_used_without_asking(hub: Hub, tmp_path: Path) -> None:
    folder = fetch(hub, tmp_path)
    hub.asked.clear()
    assert fetch(hub, tmp_path) == folder
    assert hub.asked == []


def test_what_another_has_fetched_meanwhile_is_used(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fetch(hub, tmp_path / "theirs")
    hub.asked.clear()

    @contextmanager
    def locked(target: Path) -> Generator[None]:
        shutil.copytree(whole, target)  # while we waited for the lock
        yield

    monkeypatch.setattr(repository, "locked", locked)
    assert sorted(file.name for file in fetch(hub, tmp_path / "ours").iterdir()) == KEPT
    assert hub.asked == []


def test_damaged_weights_are_not_put_in_place(hub: Hub, tmp_path: Path) -> None:
    hub.damaged.add("model-00001-of-00002.safetensors")
    with pytest.raises(FetchError, match=r"model-00001-of-00002\.safetensors arrived damaged"):
        fetch(hub, tmp_path)
    assert not (tmp_path / "repositories" / "owner--small").exists()


def test_a_half_fetched_repository_does_not_look_complete_and_is_resumed(
    hub: Hub, tmp_path: Path
) -> None:
    second = "model-00002-of-00002.safetensors"
    hub.cut_after[second] = [3000]
    with pytest.raises(FetchError, match="3000 of 7000"):
        fetch(hub, tmp_path)
    target = tmp_path / "repositories" / "owner--small"
    assert not target.exists()
    hub.asked.clear()
    assert fetch(hub, tmp_path) == target
    assert [(path.rpartition("/")[2], ranged) for path, ranged, _ in hub.asked[1:]] == [
        (second, "bytes=3000-")
    ]
    assert sorted(file.name for file in target.iterdir()) == KEPT
    assert sorted(file.name for file in target.parent.iterdir()) == [
        "owner--small",
        "owner--small.lock",
    ]


def test_parts_of_an_older_commit_are_not_mixed_in(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after["model-00002-of-00002.safetensors"] = [3000]
    with pytest.raises(FetchError):
        fetch(hub, tmp_path)
    hub.commit = "beef"
    hub.files["config.json"] = b'{"new": true}'
    folder = fetch(hub, tmp_path)
    assert (folder / "config.json").read_bytes() == b'{"new": true}'
    assert len(list(folder.parent.iterdir())) == 2


def test_a_listing_without_sizes_will_do(hub: Hub, tmp_path: Path) -> None:
    hub.sizes = False
    reports: list[tuple[int, int | None]] = []
    folder = fetch_repository(
        "owner/small", tmp_path, lambda *report: reports.append(report), Site(hub.address)
    )
    assert sorted(file.name for file in folder.iterdir()) == KEPT
    assert {total for _, total in reports} == {None}
    assert reports[-1] == (TOTAL, None)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_repository_that_cannot_be_run_is_refused(hub: Hub, tmp_path: Path, missing: str) -> None:
    del hub.files[missing]
    with pytest.raises(FetchError, match=f"owner/small has no {missing}"):
        fetch(hub, tmp_path)


def test_weights_in_another_layout_do_not_count(hub: Hub, tmp_path: Path) -> None:
    hub.files = {n: c for n, c in FILES.items() if not n.startswith("model-")}
    with pytest.raises(FetchError, match=r"has no model\*\.safetensors"):
        fetch(hub, tmp_path)
    assert not (tmp_path / "repositories" / "owner--small").exists()


def test_a_repository_or_revision_that_is_not_there_is_told(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"owner/other.*404"):
        fetch(hub, tmp_path, "owner/other")
    with pytest.raises(FetchError, match=r"v2.*404"):
        fetch(hub, tmp_path, "owner/small@v2")
    assert hub.asked[-1][0] == "/api/models/owner/small/revision/v2?blobs=true"
    with pytest.raises(FetchError, match=r"404"):
        fetch(hub, tmp_path, "owner/small@refs/pr/1")
    assert hub.asked[-1][0] == "/api/models/owner/small/revision/refs%2Fpr%2F1?blobs=true"


def test_an_answer_of_another_shape_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.listing = lambda: b"[]"  # type: ignore[method-assign]
    with pytest.raises(FetchError, match="in an unknown way"):
        fetch(hub, tmp_path)
    hub.listing = lambda: b'{"sha": "../../up", "siblings": []}'  # type: ignore[method-assign]
    with pytest.raises(FetchError, match=r"'\.\./\.\./up', which is no commit"):
        fetch(hub, tmp_path)


@pytest.mark.parametrize("name", ["owner/name", "o/n.1-b_2", "owner/name@v1", "owner/n@refs/pr/1"])
def test_names_of_repositories(name: str) -> None:
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["name", "/name", "a/b/c", "../x", "a/..", "a/b@", "a b/c", "./x"])
def test_names_of_no_repository(name: str) -> None:
    assert not NAME.fullmatch(name)
