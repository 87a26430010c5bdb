"""Chooses one GGUF file of a repository, which often has one for each quantization."""

import re
from collections.abc import Sequence

from paceline.core.errors import some
from paceline.hub.errors import FetchError
from paceline.hub.repository_name import RepositoryName

SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
MOST_NAMED = 12


def gguf_files(files: Sequence[str]) -> list[str]:
    return sorted(file for file in files if file.lower().endswith(".gguf"))


def choose_gguf(name: RepositoryName, files: Sequence[str]) -> str:
    """The file that `name.gguf` names: by its path, its file name, or a part of it."""
    assert name.gguf is not None
    found = gguf_files(files)
    if not found:
        raise FetchError(f"{name.repository} has no .gguf file")
    matching = matches(name.gguf.lower(), found)
    if not matching:
        raise FetchError(f"{name.repository} has no GGUF file {name.gguf!r}; {listed(found)}")
    if all(SPLIT.search(file) for file in matching):
        raise FetchError(
            f"{matching[0]} of {name.repository} is one part of a split model; paceline reads "
            "GGUF models of one file: choose a smaller quantization, or join the parts with "
            "llama-gguf-split --merge"
        )
    if len(matching) > 1:
        raise FetchError(
            f"{name.gguf!r} names several files of {name.repository}; {listed(matching)}"
        )
    return matching[0]


def matches(wanted: str, files: Sequence[str]) -> list[str]:
    """Exact names first; then names that contain it between `-`, `_` or `.`."""
    if exact := [file for file in files if file.lower() == wanted]:
        return exact
    if exact := [file for file in files if file.lower().rpartition("/")[2] == wanted]:
        return exact
    part = re.compile(rf"(^|[-_./]){re.escape(wanted)}([-_.]|$)")
    return [file for file in files if part.search(file.lower())]


def listed(files: Sequence[str]) -> str:
    return f"choose one of: {some(files, MOST_NAMED)}"
