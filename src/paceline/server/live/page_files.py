"""The files of the page, as they are sent to browsers."""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path

from fastapi import Request, Response

FOLDER = Path(__file__).parents[1] / "dashboard"
INDEX = "index.html"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}
TEXTS = ("text/", "image/svg")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NOT_MODIFIED = 304


class PageFiles:
    """All files of a folder, read once: no path of a client reaches the file system."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, tuple[bytes, dict[str, str]]] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                body = path.read_bytes()
                headers = {"Content-Type": type_of(path), "ETag": f'"{sha256(body).hexdigest()}"'}
                name = path.relative_to(folder).as_posix()
                self._files[name] = body, headers | HEADERS

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def response(self, name: str, request: Request) -> Response | None:
        """A file, or that the browser has it; None if there is none of that name."""
        if (found := self._files.get(name)) is None:
            return None
        body, headers = found
        if has_one_of(request.headers.getlist("if-none-match"), headers["ETag"]):
            return Response(status_code=NOT_MODIFIED, headers=headers)
        return Response(body, headers=headers)


def has_one_of(conditions: Sequence[str], etag: str) -> bool:
    """Does the browser have this version, or any if it names none? A proxy may weaken a tag."""
    tags = [tag.strip() for condition in conditions for tag in condition.split(",")]
    return any(tag == "*" or tag.removeprefix("W/") == etag for tag in tags)


def type_of(path: Path) -> str:
    kind = TYPES.get(path.suffix) or guess_type(path.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith(TEXTS) else kind


@cache
def page_files() -> PageFiles:
    """The files that come with paceline."""
    return PageFiles()
