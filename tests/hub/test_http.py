import hashlib
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.hub import http
from paceline.hub.errors import FetchError
from paceline.hub.http import RemoteFile, Site, sha256
from tests.hub.support import Hub, serving

CONTENT = bytes(range(256)) * 40
PATH = "/owner/small/resolve/c0ffee/file.bin"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    monkeypatch.setattr(http, "PAUSES_S", (0.0, 0.0))
    with serving(Hub(files={"file.bin": CONTENT})) as hub:
        yield hub


def file(content: bytes = CONTENT, *, sized: bool = True, summed: bool = True) -> RemoteFile:
    size = len(content) if sized else None
    return RemoteFile("file.bin", size, digest(content) if summed else None)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def get(hub: Hub, target: Path, wanted: RemoteFile) -> list[int]:
    reports: list[int] = []
    Site(hub.address).download(PATH, wanted, target, reports.append)
    return reports


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_is_put_in_place(hub: Hub, tmp_path: Path, sized: bool, lengths: bool) -> None:
    hub.lengths = lengths
    target = tmp_path / "file.bin"
    assert get(hub, target, file(sized=sized))[-1] == len(CONTENT)
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]
    assert sha256(target) == digest(CONTENT)


def test_an_empty_file_is_put_in_place(hub: Hub, tmp_path: Path) -> None:
    hub.files["file.bin"] = b""
    get(hub, tmp_path / "f", file(b""))
    assert (tmp_path / "f").read_bytes() == b""


def test_a_broken_transfer_goes_on_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after["file.bin"] = [1000, 500]
    assert get(hub, tmp_path / "f", file())[-1] == len(CONTENT)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert [ranged for _, ranged, _ in hub.asked] == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_call_goes_on_where_the_last_gave_up(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after["file.bin"] = [1000, 1000, 1000]
    with pytest.raises(FetchError, match="3000 of 10240 bytes arrived"):
        get(hub, tmp_path / "f", file())
    assert not (tmp_path / "f").exists()
    get(hub, tmp_path / "f", file())
    assert hub.asked[-1][1] == "bytes=3000-"
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(hub: Hub, tmp_path: Path) -> None:
    hub.ranges = False
    hub.cut_after["file.bin"] = [1000]
    get(hub, tmp_path / "f", file())
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_part_that_is_complete_is_not_asked_for(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT)
    get(hub, tmp_path / "f", file())
    assert hub.asked == []
    assert (tmp_path / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("sized", [True, False])
def test_a_part_that_is_too_long_is_thrown_away(hub: Hub, tmp_path: Path, sized: bool) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT + b"more")
    get(hub, tmp_path / "f", file(sized=sized))
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_damaged_content_is_refused_and_forgotten(hub: Hub, tmp_path: Path) -> None:
    hub.damaged.add("file.bin")
    with pytest.raises(FetchError, match=r"file\.bin arrived damaged"):
        get(hub, tmp_path / "f", file())
    assert list(tmp_path.iterdir()) == []


def test_another_size_than_promised_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="has 10240 bytes; 10241 were promised"):
        get(hub, tmp_path / "f", file(CONTENT + b"x", summed=False))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_server_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.fail_with = [503, 429]
    get(hub, tmp_path / "f", file())
    assert (tmp_path / "f").read_bytes() == CONTENT
    hub.fail_with = [500, 502, 503]
    with pytest.raises(FetchError, match=r"/api/models/owner/small.* cannot be had: .*503"):
        Site(hub.address).json("/api/models/owner/small/revision/main?blobs=true")


def test_an_answer_that_breaks_off_is_asked_for_again(hub: Hub) -> None:
    hub.files["file.bin"] = b'{"whole": true}'
    hub.cut_after["file.bin"] = [4]
    assert Site(hub.address).json(PATH) == {"whole": True}


def test_a_server_that_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSES_S", (0.0,))
    monkeypatch.setattr(http, "TIMEOUT_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(FetchError, match=r"/x cannot be had: .*timed out"):
            Site(address).json("/x")


def test_a_refusal_is_final(hub: Hub, tmp_path: Path) -> None:
    hub.fail_with = [404]
    with pytest.raises(FetchError, match=r"file\.bin: 404 Not Found"):
        get(hub, tmp_path / "f", file())
    assert len(hub.asked) == 1


def test_a_token_is_sent_and_its_lack_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    with pytest.raises(FetchError, match=r"needs a token .*HF_TOKEN"):
        get(hub, tmp_path / "f", file())
    site = Site.hugging_face({"HF_ENDPOINT": hub.address + "/", "HF_TOKEN": "secret"})
    site.download(PATH, file(), tmp_path / "f", lambda done: None)
    assert hub.asked[-1][2] == "Bearer secret"


def test_whoever_may_not_read_is_told_of_the_token(hub: Hub, tmp_path: Path) -> None:
    hub.fail_with = [403]
    with pytest.raises(FetchError, match=r"needs a token .*HF_TOKEN"):
        get(hub, tmp_path / "f", file())
    assert len(hub.asked) == 1


def test_a_token_does_not_follow_to_another_place(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    hub.cut_after["file.bin"] = [1000]
    hub.redirect_to = hub.address.replace("127.0.0.1", "localhost")
    Site(hub.address, "secret").download(PATH, file(), tmp_path / "f", lambda done: None)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert [token for _, _, token in hub.asked] == ["Bearer secret", None] * 2
    assert hub.asked[-1][1] == "bytes=1000-"


def test_a_token_follows_within_the_place(hub: Hub, tmp_path: Path) -> None:
    request = http.urllib.request.Request(hub.address, headers={"Authorization": "Bearer x"})
    redirected = http.TokenStaysHome().redirect_request(
        request, None, 302, "", http.http.client.HTTPMessage(), hub.address + "/other"
    )
    assert redirected is not None
    assert redirected.get_header("Authorization") == "Bearer x"


def test_a_token_does_not_follow_to_where_it_could_be_read() -> None:
    request = http.urllib.request.Request("https://hub/x", headers={"Authorization": "Bearer x"})
    redirected = http.TokenStaysHome().redirect_request(
        request, None, 302, "", http.http.client.HTTPMessage(), "http://hub/x"
    )
    assert redirected is not None
    assert redirected.get_header("Authorization") is None


def test_a_redirection_to_no_address_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.redirect_to = "http://["
    with pytest.raises(FetchError, match=r"file\.bin cannot be had: "):
        get(hub, tmp_path / "f", file())


@pytest.mark.parametrize("content", [CONTENT, b"[" * 100_000])
def test_an_answer_that_is_not_json_is_told(hub: Hub, content: bytes) -> None:
    hub.files["file.bin"] = content
    with pytest.raises(FetchError, match="answers with no JSON"):
        Site(hub.address).json(PATH)


def test_nobody_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSES_S", (0.0,))
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:9/x cannot be had: .*refused"):
        Site("http://127.0.0.1:9").json("/x")


def test_the_hub_is_the_one_people_know_unless_told_otherwise() -> None:
    assert Site.hugging_face({}).endpoint == http.HUGGING_FACE
    assert Site.hugging_face({"HF_ENDPOINT": ""}).endpoint == http.HUGGING_FACE
    assert Site.hugging_face({"HF_ENDPOINT": "http://mirror/"}).endpoint == "http://mirror"
    with pytest.raises(ConfigError, match="'file:///etc' is no address"):
        Site.hugging_face({"HF_ENDPOINT": "file:///etc"})
