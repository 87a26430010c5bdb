"""The files of a repository: its name, what is missing, and which GGUF file to take."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.errors import PacelineError, some


class FetchError(PacelineError):
    """A model cannot be downloaded, or what arrived is not what was promised."""


Progress = Callable[[int, int | None], None]  # bytes done, bytes in all if known


def silent(_done: int, _total: int | None) -> None:
    """Report nothing."""


PATTERN = re.compile(
    r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)"
    r"(@(?P<revision>[\w][\w./-]*))?"
    r"(:(?P<gguf>[\w][\w./-]*))?"
)


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """A repository on the hub.

    gguf  the GGUF file to take: its name, or a part of it such as Q4_K_M. None: the repository has
          a folder of safetensors
    """

    repository: str
    revision: str | None = None
    gguf: str | None = None

    @classmethod
    def parse(cls, text: str) -> "RepositoryName | None":
        """None if the text does not have the form of such a name."""
        found = PATTERN.fullmatch(text)
        return cls(**found.groupdict()) if found else None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repository}{revision}" + (f":{self.gguf}" if self.gguf else "")


ADAPTER = "adapter_config.json"
PICKLED = ("pytorch_model", "consolidated")  # how files of other formats begin


def missing(needed: str, files: Sequence[str], prefix: str) -> str:
    """Why files without `needed` are not a model; `prefix` and a GGUF file would name one."""
    if ADAPTER in files:
        return (
            "it is a PEFT adapter, which paceline cannot load: merge it into its base model "
            "(merge_and_unload in peft), and save the result"
        )
    lacks = f"it has no {needed}"
    if found := gguf_files(files):
        return f"{lacks}, but GGUF files: name one, as in {prefix}{found[0]}; {listed(found)}"
    if pickled := [file for file in files if file.startswith(PICKLED)]:
        return (
            f"{lacks}, but {pickled[0]}: load it with transformers, and save it with "
            "save_pretrained, which writes safetensors"
        )
    return lacks


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
