"""The files of a recording: the newest has the given name, older ones have a number behind it."""

from io import FileIO
from pathlib import Path

from paceline.sched.replay.records import MAGIC, RecordingError


def opened(path: Path, files: int) -> FileIO:
    """A new file. Recordings that are already there are renamed; `files` of all are kept.

    RecordingError if another kind of file is in the way; OSError if it cannot be created.
    """
    if path.exists() and not path.is_file():
        return path.open("wb", buffering=0)  # a device or a pipe cannot be renamed
    if path.is_file() and path.stat().st_size:
        check_is_recording(path)
        shift(path, files)
    return path.open("wb", buffering=0)


def check_writable(path: Path) -> None:
    """RecordingError if a recording cannot be written here. It leaves no file behind."""
    if path.is_dir():
        raise RecordingError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        return  # a device or a pipe: opening it may wait for a reader
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
        elif path.stat().st_size:
            check_is_recording(path)
    except OSError as error:
        raise RecordingError(f"cannot write to {path}: {error.strerror}") from None


def check_is_recording(path: Path) -> None:
    with path.open("rb") as there:
        if there.read(len(MAGIC)) != MAGIC:
            raise RecordingError(f"{path} exists and is not a recording; choose another name")


def shift(path: Path, files: int) -> None:
    """Rename `run` to `run.1`, `run.1` to `run.2` and so on; the oldest is overwritten."""
    for number in range(files - 1, 0, -1):
        older, newer = numbered(path, number), numbered(path, number - 1)
        if newer.is_file():
            newer.replace(older)


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
