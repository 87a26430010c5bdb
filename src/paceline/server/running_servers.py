"""The list of the servers that run on this machine, for `paceline ps`."""

import json
import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time

from filelock import FileLock, Timeout

from paceline.core.system.files import places, stored

log = logging.getLogger(__name__)

FOLDER = Path("servers")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server, as others on the machine see it.

    name     what requests call the model
    model    what was served: a name, a path or a repository
    url      where it listens
    pid      its process
    since    when it began to listen, in seconds since 1970
    machine  the name of the machine; a cache folder may be shared
    """

    name: str
    model: str
    url: str
    pid: int
    since: float
    machine: str

    @staticmethod
    def here(name: str, model: str, url: str) -> "RunningServer":
        return RunningServer(name, model, url, os.getpid(), time(), socket.gethostname())


@contextmanager
def announced(server: RunningServer) -> Generator[None]:
    """List a server while the block lasts. The system releases the lock of a killed process."""
    path = FOLDER / f"{server.machine}-{server.pid}.json"
    try:
        held = stored(path.with_suffix(".lock"), Path.touch)  # first: a file without it is removed
        lock = FileLock(held)
        lock.acquire()
        file = stored(path, lambda built: write_entry(built, server))
    except OSError as error:
        log.warning("`paceline ps` will not list this server: %s", error)
        yield
        return
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()
        held.unlink(missing_ok=True)


def write_entry(path: Path, server: RunningServer) -> None:
    path.write_text(json.dumps(asdict(server)), encoding="utf-8")


def running_servers() -> list[RunningServer]:
    """The servers of this machine, oldest first. Files that killed processes left are removed."""
    machine = socket.gethostname()
    files = [file for folder in places(FOLDER) for file in folder.glob(f"{machine}-*.json")]
    found = [entry for file in files if (entry := read_entry(file))]
    return sorted(found, key=lambda server: server.since)


def read_entry(file: Path) -> RunningServer | None:
    """A server that runs; None, without a trace, if it has ended."""
    try:
        with FileLock(file.with_suffix(".lock"), blocking=False):
            file.unlink(missing_ok=True)
        file.with_suffix(".lock").unlink(missing_ok=True)
    except Timeout:  # its process holds the lock
        with suppress(OSError, ValueError, TypeError):
            return RunningServer(**json.loads(file.read_text(encoding="utf-8")))
    except OSError:  # a file of another user
        pass
    return None
