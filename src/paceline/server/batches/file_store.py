"""Files of clients in a folder, each with a description beside it."""

import json
import os
import re
from collections.abc import Iterable
from math import inf
from pathlib import Path
from threading import Lock
from time import time
from typing import Any, cast
from uuid import uuid4

from paceline.server.errors import NOT_FOUND, TOO_LARGE, ApiError

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
MOST_NAME = 255  # characters of a file name
Description = dict[str, Any]


class FileStore:
    """Each file is `ID` in the folder, and `ID.json` describes it.

    The description is written last and removed first, so that a file is there as a whole or not at
    all. Several processes may use the same folder.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """`most_bytes` bounds all files together. The folder is made if it is missing."""
        self._folder, self._most_bytes = folder, most_bytes
        self._adding = Lock()  # two files at once would each have the room of both
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(
        self, name: str, purpose: str, chunks: Iterable[bytes], bounded: bool = True
    ) -> Description:
        """Store a file. 413 if it is `bounded` and the folder would have more than its bytes."""
        with self._adding:
            return self._add(name, purpose, chunks, self._room if bounded else inf)

    @property
    def _room(self) -> int:
        return self._most_bytes - sum(one["bytes"] for one in self.all())

    def check_room(self) -> None:
        """413 if the folder has all its bytes."""
        if self._room <= 0:
            raise self._full()

    def _full(self) -> ApiError:
        problem = f"the files would have more than {self._most_bytes} bytes"
        advice = "delete some, or start the server with a larger --files-bytes"
        return ApiError(TOO_LARGE, f"{problem} (files_bytes); {advice}")

    def _add(self, name: str, purpose: str, chunks: Iterable[bytes], room: float) -> Description:
        file_id, size = f"file-{uuid4().hex}", 0
        path = self.path(file_id)
        try:
            with path.open("xb") as out:
                for chunk in chunks:
                    size += len(chunk)
                    if size > room:
                        raise self._full()
                    out.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        found: Description = {
            "id": file_id,
            "object": "file",
            "bytes": size,
            "created_at": int(time()),
            "filename": name[:MOST_NAME],
            "purpose": purpose,
            "status": "processed",
        }
        write_json(self._described(file_id), found)
        return found

    def all(self) -> list[Description]:
        """Every file, oldest first."""
        found = [read_json(path) for path in self._folder.glob("file-*.json")]
        return sorted(filter(None, found), key=lambda one: (one["created_at"], one["id"]))

    def get(self, file_id: str) -> Description:
        """404 if there is no such file."""
        if FILE_ID.fullmatch(file_id) and (found := read_json(self._described(file_id))):
            return found
        raise ApiError(NOT_FOUND, f"there is no file {file_id!r}", param="file_id")

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def remove(self, file_id: str) -> None:
        """Delete a file. 404 if there is none."""
        self.get(file_id)
        self._described(file_id).unlink(missing_ok=True)
        self.path(file_id).unlink(missing_ok=True)

    def _described(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"


def read_json(path: Path) -> Description | None:
    """The object in a file; None if it is gone, or no JSON."""
    try:
        return cast("Description", json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Description) -> None:
    """Replace a file at once, so that readers find the old content or the new one."""
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(content))
    new.replace(path)
