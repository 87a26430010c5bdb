"""Names the weights of a model by their content, for the keys of cached blocks."""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from paceline.core.config import LoadConfig
from paceline.runner.weights.checkpoint import Checkpoint

SAMPLES, SAMPLE_BYTES = 256, 4096  # of each file, evenly spaced


def fingerprint(checkpoint: Checkpoint, device: str, own: LoadConfig) -> str:
    """Equal for equal weights that are computed with in the same way, wherever their files are.

    It covers the shape of the model, the sizes of its files and samples of their content, which any
    training changes. All of the content would take as long to read as the weights.
    """
    name = blake2b(digest_size=16)
    numbers = device, own.dtype, own.kv_cache_dtype, own.weights
    for part in (repr(checkpoint.config), *numbers):
        add(name, part.encode())
    for file in checkpoint.files:
        add(name, str(file.stat().st_size).encode())
        for sample in samples(file):
            add(name, sample)
    return name.hexdigest()


def add(name: blake2b, part: bytes) -> None:
    """Add a part with its length, so that no two lists of parts look alike."""
    name.update(len(part).to_bytes(8, "little") + part)


def samples(file: Path) -> Iterable[bytes]:
    size = file.stat().st_size
    stride = max(size // SAMPLES, SAMPLE_BYTES)
    with file.open("rb") as content:
        for place in range(0, size, stride):
            content.seek(place)
            yield content.read(SAMPLE_BYTES)
