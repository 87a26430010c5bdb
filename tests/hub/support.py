"""A wheel that carries a file, and a hub on this machine that can be made to misbehave."""

import hashlib
import json
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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
    """What the server has, what it was asked, and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    repository: str = "owner/small"
    commit: str = "c0ffee"
    token: str | None = None
    sizes: bool = True  # told in the listing
    ranges: bool = True  # understood
    lengths: bool = True  # told with a file
    damaged: set[str] = field(default_factory=set[str])
    cut_after: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fail_with: list[int] = field(default_factory=list[int])  # statuses of the next answers
    redirect_to: str = ""  # another address that has the files
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    address: str = ""

    def listing(self) -> bytes:
        siblings: list[dict[str, object]] = []
        for name, content in self.files.items():
            entry: dict[str, object] = {"rfilename": name}
            if self.sizes:
                entry["size"] = len(content)
            if name.endswith(".safetensors"):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest()}
            siblings.append(entry)
        return json.dumps({"sha": self.commit, "siblings": siblings}).encode()


def answers(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            token = self.headers.get("Authorization")
            hub.asked.append((self.path, self.headers.get("Range"), token))
            if hub.fail_with:
                return self.send_error(hub.fail_with.pop(0))
            at_home = self.headers["Host"] == hub.address.removeprefix("http://")
            if hub.token is not None and at_home and token != f"Bearer {hub.token}":
                return self.send_error(401)
            if self.path == f"/api/models/{hub.repository}/revision/main?blobs=true":
                return self.send(200, hub.listing())
            begin = f"/{hub.repository}/resolve/{hub.commit}/"
            name = self.path.removeprefix(begin)
            if not self.path.startswith(begin) or name not in hub.files:
                return self.send_error(404)
            if hub.redirect_to and at_home:
                self.send_response(302)
                self.send_header("Location", hub.redirect_to + self.path)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            return self.send_file(name)

        def send_file(self, name: str) -> None:
            content = hub.files[name]
            if name in hub.damaged:
                content = bytes(len(content))
            asked = self.headers.get("Range")
            if asked is None or not hub.ranges:
                return self.send(200, content, hub.cut_after.get(name))
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416)
            return self.send(206, content[start:], hub.cut_after.get(name))

        def send(self, status: int, content: bytes, cuts: list[int] | None = None) -> None:
            self.send_response(status)
            if hub.lengths:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: cuts.pop(0)] if cuts else content)

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
