"""Addresses and sockets where servers listen, and the list of servers of this machine."""

import json
import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from errno import EACCES, EADDRINUSE
from pathlib import Path
from time import time
from typing import Any

from filelock import FileLock, Timeout

from paceline.core.errors import ConfigError
from paceline.core.system.files import places, stored

LONGEST_SOCKET_PATH = 107  # bytes that the kernel has room for
UNIX_SOCKET_MODE = 0o666  # every user who may enter its folder can connect
log = logging.getLogger(__name__)
FOLDER = Path("servers")


def check_port(host: str, port: int) -> None:
    """ConfigError if the port is in use, before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise unusable(host, port, error) from None


def unusable(host: str, port: int, error: OSError) -> ConfigError:
    # create_server appends the address, which the message has already.
    problem = (error.strerror or str(error)).partition(" (while")[0]
    flag = "--port" if error.errno in (EADDRINUSE, EACCES) else "--host"
    return ConfigError(f"cannot listen at {host}, port {port}: {problem}; choose another {flag}")


def check_socket(path: str) -> None:
    """ConfigError if a Unix socket cannot be made there, or another server listens at it."""
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"uds is {path!r}; the path of a socket has at most {LONGEST_SOCKET_PATH} bytes"
        )
    if not Path(path).parent.is_dir():
        raise ConfigError(f"uds is {path!r}, but there is no folder {Path(path).parent}")
    if not os.path.lexists(path):
        return
    if not Path(path).is_socket():
        raise ConfigError(f"uds is {path!r}, which is not a socket; choose another --uds")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise ConfigError(f"another server listens at {path}; choose another --uds")


def bound_sockets(host: str, port: int, uds: str = "") -> list[socket.socket]:
    """Sockets at an address that do not listen yet: one for each address of the host.

    Clients are refused until the first process listens.
    """
    if uds:
        check_socket(uds)
        return [bound_unix_socket(uds)]
    sockets: list[socket.socket] = []
    try:
        for family, kind, _, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            sockets.append(bound_socket(family, kind, address))
    except OSError as error:
        for one in sockets:
            one.close()
        raise unusable(host, port, error) from None
    return sockets


def bound_socket(
    family: socket.AddressFamily, kind: socket.SocketKind, address: Any
) -> socket.socket:
    one = socket.socket(family, kind)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except BaseException:
        one.close()
        raise
    return one


def bound_unix_socket(path: str) -> socket.socket:
    """Replace the socket that a server left there, and keep its mode."""
    mode = Path(path).stat().st_mode & 0o777 if os.path.lexists(path) else UNIX_SOCKET_MODE
    Path(path).unlink(missing_ok=True)
    one = socket.socket(socket.AF_UNIX)
    one.bind(path)
    Path(path).chmod(mode)
    return one


def url_of(listener: socket.socket) -> str:
    """Where clients reach a socket."""
    name: Any = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
