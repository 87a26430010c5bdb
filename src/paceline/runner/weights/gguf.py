"""A .gguf file as a checkpoint, with the names and layouts of HF."""

from pathlib import Path

from torch import Tensor

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.gguf_config import ALL_FACTORS, GGUFTensors
from paceline.runner.models.tensor_spec import Shape
from paceline.runner.weights.gguf_file import GGUFTensor, read_gguf
from paceline.runner.weights.quants import dequantised

EXACT = {"F32", "F16", "BF16"}


class GGUF:
    """A checkpoint in llama.cpp's format. The file stays mapped while the checkpoint is used.

    A tensor that the description of the model does not name keeps its own name.
    """

    def __init__(self, path: Path) -> None:
        self.files = [path]
        file = read_gguf(path)
        tensors = dict(file.tensors)
        factors = {name: tensors.pop(name) for name in ALL_FACTORS if name in tensors}
        numbers = {name: dequantised(tensor).tolist() for name, tensor in factors.items()}
        self.config = ModelConfig.of_gguf(file.fields, GGUFTensors(tensors.keys(), numbers))
        described = describe(self.config).tensors
        self._forms = {tensor.name: tensor.gguf for tensor in described}
        known = {form.name for form in self._forms.values()}
        self._tensors = {name: tensors[name] for name in tensors if name not in known}
        for name, form in self._forms.items():
            if form.name in tensors:
                self._add(name, tensors[form.name], form.part)

    def _add(self, name: str, stored: GGUFTensor, part: int | None) -> None:
        if part is None:
            self._tensors[name] = stored
        elif part < stored.shape[0]:
            self._tensors[name] = stored.part(part)

    @property
    def is_quantized(self) -> bool:
        kinds = {tensor.encoding.name for tensor in self._tensors.values()}
        return not kinds <= EXACT

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        tensor, form = dequantised(self._tensors[name]), self._forms[name]
        if form.paired_heads:
            return _unpaired(tensor, form.paired_heads)
        return tensor - form.offset if form.offset else tensor


def _unpaired(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from x0 y0 x1 y1 … to x0 x1 … y0 y1 …, where pair i is (xi, yi)."""
    paired = tensor.view(heads, -1, 2, *tensor.shape[1:])  # [heads, head_dim / 2, 2, …]
    return paired.transpose(1, 2).reshape(tensor.shape)
