"""Names of a model's weights, and of everything that its outputs depend on."""

import platform
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path

import torch

import paceline
from paceline.core.settings.load import LoadConfig
from paceline.runner.native import build
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.text.tokenizer import Tokenizer

SAMPLES, SAMPLE_BYTES = 256, 4096  # of each file, evenly spaced
CODE = ("runner", "core/masks.py", "text", "structured")  # what computes outputs
SETTINGS = (
    "attention",
    "quantization",
    "tensor_parallel_size",
    "enforce_eager",
    "generation_config",
)


def model_fingerprint(
    checkpoint: Checkpoint, device: str, load_config: LoadConfig, version: str = ""
) -> str:
    """Equal for equal weights that are computed with in the same way, wherever their files are.

    It covers the shape of the model, the sizes of its files and samples of their content, which any
    training changes. All of the content would take as long to read as the weights. KV of a
    batch-invariant model is that of the same kernels alone. A version is part of it.
    """
    numbers = device, load_config.dtype, load_config.kv_cache_dtype, load_config.weights
    if load_config.batch_invariant:
        numbers = *numbers, *kernels(device, load_config)
    parts = repr(checkpoint.config), *numbers, *([version] if version else [])
    return digest([*(part.encode() for part in parts), *samples_of(checkpoint.files)])


def system_fingerprint(
    weights: str, tokenizer: Tokenizer, device: str, load_config: LoadConfig
) -> str:
    """A name that changes when outputs may change: with the weights, which are named already, the
    tokenizer with its templates, the kernels and the mode."""
    texts = *tokenizer.files().values(), repr(tokenizer.recommended)
    parts = weights, *kernels(device, load_config), *texts
    return f"fp_{digest(part.encode() for part in parts)}"


def kernels(device: str, load_config: LoadConfig) -> Iterator[str]:
    """The code that computes outputs, where it runs, and settings that choose kernels."""
    yield f"batch_invariant {load_config.batch_invariant}"
    yield f"torch {torch.__version__}"
    yield code()
    if device == "cuda":
        yield torch.cuda.get_device_name()
        yield f"CUDA {torch.version.cuda}"
    else:
        yield f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
        yield " ".join(sorted(build.features()))
        if not load_config.batch_invariant:
            yield f"threads {load_config.threads or torch.get_num_threads()}"
    yield from (f"{name} {getattr(load_config, name)}" for name in SETTINGS)


@cache
def code() -> str:
    """A digest of the version, and of the modules and kernels that compute outputs."""
    folder = Path(paceline.__file__).parent
    places = (folder / name for name in CODE)
    files = (file for one in places for file in (sorted(one.rglob("*")) if one.is_dir() else [one]))
    texts = (file.read_bytes() for file in files if file.suffix in (".py", ".c", ".h", ".cu"))
    return digest([paceline.__version__.encode(), *texts])


def digest(parts: Iterable[bytes]) -> str:
    """Of parts with their lengths, so that no two lists of parts look alike."""
    name = blake2b(digest_size=16)
    for part in parts:
        name.update(len(part).to_bytes(8, "little") + part)
    return name.hexdigest()


def samples_of(files: Iterable[Path]) -> Iterator[bytes]:
    """The size of each file, and samples of its content."""
    for file in files:
        yield str(file.stat().st_size).encode()
        yield from samples(file)


def samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    stride = max(size // SAMPLES, SAMPLE_BYTES)
    with file.open("rb") as content:
        for offset in range(0, size, stride):
            content.seek(offset)
            yield content.read(SAMPLE_BYTES)
