"""A wheel that carries a file, and a local hub with faults on request."""

import hashlib
import json
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest
from huggingface_hub import close_session, constants

from paceline.hub.catalogue import NamedModel

MEMBER = "pace_tiny/tiny.gguf"


def carried(content: bytes = b"GGUF and so on" * 1000) -> NamedModel:
    return NamedModel(
        name="tiny",
        aliases=("tiny-instruct",),
        package="pace-tiny",
        version="1.0",
        wheel_bytes=1000,
        member=MEMBER,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
        summary="for tests",
    )


def write_wheel(
    folder: Path, content: bytes = b"GGUF and so on" * 1000, requires: str | None = None
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "pace_tiny-1.0-py3-none-any.whl"
    about = "pace_tiny-1.0.dist-info"
    named = "Metadata-Version: 2.1\nName: pace-tiny\nVersion: 1.0\n"
    named += f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(f"{about}/METADATA", named)
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


@dataclass
class Hub:
    """A hub with one repository: its content, the requests it received, and its faults."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    repository: str = "owner/small"
    commit: str = "c0ffee" + "0" * 34
    revisions: tuple[str, ...] = ("main",)
    token: str | None = None
    gated: bool = False
    cut_after: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # bytes
    fail_with: list[int] = field(default_factory=list[int])  # statuses of the next answers
    fail_files_with: int = 0  # status of every answer about a file
    asked: list[tuple[str, str, str | None, str | None]] = field(
        default_factory=list[tuple[str, str, str | None, str | None]]
    )  # method, path, range, token
    address: str = ""

    def fetched(self) -> list[str]:
        """The names of the files that were downloaded, sorted."""
        found = [path for method, path, _, _ in self.asked if method == "GET"]
        return sorted(path.rpartition("/")[2] for path in found if "/resolve/" in path)

    def listing(self) -> bytes:
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": digest(content)[:40]}
            for name, content in self.files.items()
        ]
        return json.dumps(entries).encode()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def answers(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            token = self.headers.get("Authorization")
            hub.asked.append((self.command, self.path, self.headers.get("Range"), token))
            path = self.path.partition("?")[0]
            if hub.fail_with:
                return self.refuse(hub.fail_with.pop(0))
            if hub.token is not None and token != f"Bearer {hub.token}":
                return self.refuse(401, "RepoNotFound")
            if path.startswith(f"/api/models/{hub.repository}/"):
                return self.answer_api(path.removeprefix(f"/api/models/{hub.repository}/"))
            start = f"/{hub.repository}/resolve/{hub.commit}/"
            if path.startswith(start):
                return self.answer_file(path.removeprefix(start))
            return self.refuse(404, "RepoNotFound")

        def answer_api(self, rest: str) -> None:
            kind, _, revision = rest.partition("/")
            if unquote(revision) not in (*hub.revisions, hub.commit):
                return self.refuse(404, "RevisionNotFound")
            if kind == "tree":
                return self.send(200, hub.listing())
            about = {"id": hub.repository, "sha": hub.commit, "siblings": []}
            return self.send(200, json.dumps(about).encode())

        def answer_file(self, name: str) -> None:
            if hub.gated:
                return self.refuse(403, "GatedRepo")
            if hub.fail_files_with:
                return self.refuse(hub.fail_files_with)
            content = hub.files[name]
            asked = self.headers.get("Range")
            if asked is None:
                return self.send(200, content, hub.cut_after.get(name))
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            return self.send(206, content[start:], hub.cut_after.get(name))

        def refuse(self, status: int, code: str = "") -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send(self, status: int, content: bytes, cuts: list[int] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("ETag", f'"{digest(content)[:40]}"')
            self.end_headers()
            if self.command == "HEAD":
                return
            if cuts:
                content = content[: cuts.pop(0)]
                self.close_connection = True
            self.wfile.write(content)

    return Answer


@contextmanager
def serving(hub: Hub) -> Generator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers(hub))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def configured(hub: Hub, cache: Path) -> Generator[None]:
    """huggingface_hub reads its environment once, so a test changes what it has read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.address)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
        patch.delenv("HF_TOKEN", raising=False)
        close_session()
        yield
    close_session()
