"""The weights and the memory of a model on a device, as the engine changes them: new weights are
opened and compared here, and memory is released and taken again."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from paceline.core.errors import ConfigError, RequestError, WeightsLost, some
from paceline.core.settings.load import LoadConfig
from paceline.hub.repository_files import silent
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.weights.checkpoint import Checkpoint, verify
from paceline.runner.weights.files import open_checkpoint
from paceline.runner.weights.renewal import Renewable, renew, weight_bytes
from paceline.runner.weights.safetensors import TensorFiles, files_in
from paceline.wiring.device import LoadedRunner, MemoryKeeper
from paceline.wiring.fingerprint import model_fingerprint
from paceline.wiring.model import find_checkpoint

WORDS = {"bos", "eos", "generates", "ignored", "max_position"}  # of a config: not of the weights
SPARE = 1.1  # parts are built in more precise types first


@dataclass(frozen=True, slots=True, eq=False)
class OpenedWeights:
    """Weights that fit the model."""

    checkpoint: Checkpoint
    fingerprint: str
    version: str


@dataclass(frozen=True, slots=True, eq=False)
class ModelOrigin:
    """Where the weights of the start come from, and how they are loaded."""

    name: str  # a folder, a file, or the name of a shape with random weights
    config: ModelConfig
    device: str
    load_config: LoadConfig


class ResidentModel:
    """See `ModelMemory` of the engine. Every update has a version: that of the client, or else the
    fingerprint, into which the times of the files go, because samples may miss a change."""

    def __init__(
        self, model: Renewable, keeper: MemoryKeeper, origin: ModelOrigin, fingerprint: str
    ) -> None:
        self._model, self._keeper, self._origin = model, keeper, origin
        self.fingerprint = self.version = fingerprint

    def open(self, path: str, version: str) -> OpenedWeights:
        """Open other weights, by the path of a folder or a file; without one, those of the start.
        RequestError if they do not fit."""
        origin = self._origin
        try:
            if path:
                checkpoint = checkpoint_at(Path(path).expanduser(), origin)
            else:
                found = origin.name, origin.load_config, origin.device
                checkpoint, _ = find_checkpoint(*found, silent)
            compare_configs(origin.config, checkpoint.config)
            verify(checkpoint)
            times = "-".join(str(file.stat().st_mtime_ns) for file in checkpoint.files)
            name = model_fingerprint(
                checkpoint, origin.device, origin.load_config, version or times
            )
        except (ConfigError, OSError) as error:
            raise RequestError(f"the weights stay as they are: {error}") from None
        return OpenedWeights(checkpoint, name, version or name)

    def load(self, weights: OpenedWeights) -> None:
        """Replace the weights. RequestError: those in use stay. WeightsLost: there are none."""
        needed = weight_bytes(self._model) * SPARE
        try:
            renew(self._model, weights.checkpoint, has_room=self._keeper.free_bytes() > needed)
        except WeightsLost:
            raise
        except (ConfigError, OSError) as error:
            raise RequestError(f"the weights stay as they are: {error}") from None
        self.fingerprint, self.version = weights.fingerprint, weights.version

    def check_sleep(self, level: int) -> None:
        self._keeper.check(level)

    def sleep(self, level: int) -> None:
        self._keeper.release(level)

    def wake(self, tags: Sequence[str]) -> None:
        self._keeper.restore(tags)


def resident_model(
    loaded: LoadedRunner, origin: ModelOrigin, fingerprint: str
) -> ResidentModel | None:
    """None if weights and memory of the runner cannot be changed."""
    if loaded.model is None or loaded.keeper is None:
        return None
    return ResidentModel(loaded.model, loaded.keeper, origin, fingerprint)


SHARED = Path("/dev/shm")


@contextmanager
def in_shared_memory(weights: Mapping[str, Tensor]) -> Generator[str]:
    """Tensors as a file in memory, for as long as they are read; where a system has no such
    memory, in a temporary folder."""
    folder = SHARED if SHARED.is_dir() else None
    with TemporaryDirectory(prefix="paceline-", dir=folder) as place:
        file = Path(place) / "model.safetensors"
        tensors = {name: one.detach().cpu().contiguous() for name, one in weights.items()}
        save_file(tensors, file)
        del tensors
        yield str(file)


def checkpoint_at(path: Path, origin: ModelOrigin) -> Checkpoint:
    """A folder in HF's layout, with or without a config.json, or a single file."""
    config = origin.config
    if path.is_dir() and (path / "config.json").is_file():
        is_text = config.vision is None
        found = open_checkpoint(path, origin.load_config.quantization)
        if is_text and found.config.vision is not None:
            found = open_checkpoint(path, origin.load_config.quantization, text_only=True)
        return found
    if path.is_dir() or path.suffix == ".safetensors":
        files = files_in(path) if path.is_dir() else [path]
        tensors = describe(config).tensors
        return TensorFiles(config, files, tensors, lambda name: not name.startswith(config.ignored))
    return open_checkpoint(path, origin.load_config.quantization)


def compare_configs(present: ModelConfig, new: ModelConfig) -> None:
    """ConfigError if the weights of another model, or in another format, were given."""
    names = [one.name for one in fields(ModelConfig) if one.name not in WORDS]
    differing = [name for name in names if getattr(present, name) != getattr(new, name)]
    if differing:
        told = (f"{one} {getattr(new, one)!r:.60}" for one in differing)
        raise ConfigError(f"their config.json describes another model: {some(told)}")
