"""Folders of the user's cache, and JSON files."""

import json
import logging
import os
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir, mkdtemp
from typing import Any, cast

from paceline.core.errors import ConfigError

SHOWN = 30  # characters of a file that is wrong


def json_object(path: Path) -> dict[str, Any]:
    """Its fields. A ConfigError that names the file if it cannot be read or holds anything else."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text: byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise ConfigError(f"{path} is empty; it must hold a JSON object")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} {fault(error)}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except ValueError as error:  # such as a number with thousands of digits
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return cast(dict[str, Any], content)


def fault(error: json.JSONDecodeError) -> str:
    """Where a text stops being JSON."""
    rest = error.doc[error.pos :].strip()
    if not rest:
        return f"is not complete: its JSON ends in line {error.lineno}"
    shown = rest.splitlines()[0][:SHOWN]
    return f"is not JSON at line {error.lineno}, column {error.colno}: {shown!r}"


log = logging.getLogger(__name__)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """PACELINE_CACHE, or a folder in the user's cache."""
    if own := environ.get("PACELINE_CACHE"):
        return Path(own).expanduser()
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "paceline"


def packed_folder(source: Path) -> Path:
    """Where the packed weights of a model file or folder are, relative to the cache folder."""
    return Path("packed") / sha256(os.fsencode(source.absolute())).hexdigest()[:16]


@contextmanager
def placed(target: Path) -> Generator[Path, None, None]:
    """Where to write a file that appears under its own name when it is whole: several processes
    may do so at once, and none sees a part."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        yield built
        built.replace(target)


def places(path: Path) -> list[Path]:
    """Where a file may be: in the cache folder, or in the temporary one if there is one."""
    folders = [cache_folder()]
    if _is_private(temporary := _temporary_path()):
        folders.append(temporary)
    return [folder / path for folder in folders]


def found(path: Path) -> Path | None:
    """A file of the cache folder, or of the temporary one."""
    return next((place for place in places(path) if place.exists()), None)


def stored(path: Path, write: Callable[[Path], None]) -> Path:
    """Write a file of the cache folder, or of a temporary one if that is read-only.

    `path` is relative to the folder. `write` gets the place to write to; it may raise OSError.
    """
    target = _writable_folder(path.parent) / path
    with placed(target) as built:
        write(built)
    return target


def folder_for(part: Path) -> Path:
    """A folder of the cache folder, or of a temporary one if that is read-only, for libraries that
    write their own files."""
    folder = _writable_folder(part) / part
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _writable_folder(part: Path) -> Path:
    folder = cache_folder()
    try:
        (folder / part).mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder / part):
            return folder
    except OSError as error:
        _warn_once(folder, str(error))
        return temporary_folder()


@cache
def _warn_once(folder: Path, reason: str) -> None:
    log.warning(
        "the cache folder %s cannot be written (%s), so %s is used; PACELINE_CACHE sets another",
        *(folder, reason, temporary_folder()),
    )


@cache
def temporary_folder() -> Path:
    """A folder that no other user can write to, because code is loaded from it."""
    folder = _temporary_path()
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder if _is_private(folder) else Path(mkdtemp(prefix="paceline-"))


def _temporary_path() -> Path:
    return Path(gettempdir()) / f"paceline-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    try:
        state = folder.lstat()
    except OSError:
        return False
    return state.st_uid == os.getuid() and state.st_mode == stat.S_IFDIR | 0o700
