"""A GGUF file as a checkpoint, with the names and layouts of HF."""

from collections.abc import Callable, Collection
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.gguf_config import ALL_FACTORS, GGUFTensors
from paceline.runner.models.tensor_spec import GGUFForm, Shape
from paceline.runner.tensors import from_numpy, to_floats
from paceline.runner.weights import fp4
from paceline.runner.weights.gguf_file import GGUFTensor, read_gguf
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import CodedMatrix, OrderedMatrix
from paceline.runner.weights.weight_format import UNQUANTIZED

# Values of 4-bit codes that are not evenly spaced.
UNEVEN = torch.tensor(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=torch.int8
)


# Codes [blocks, elements], and the step and the offset of each group [blocks, groups], as
# `CodedMatrix` has them.
Coded = tuple[Tensor, Tensor, Tensor | None]


def dequantised(tensor: GGUFTensor) -> Tensor:
    """Decode a tensor to float32, or keep its floating-point type."""
    return DECODERS[tensor.encoding.name](from_numpy(tensor.blocks)).view(tensor.shape)


def _half(blocks: Tensor, offset: int) -> Tensor:
    """The float16 at an offset of each block, as float32."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()  # [blocks, 1]


def _int4s(packed: Tensor) -> Tensor:
    """The low 4 bits of all bytes along the last axis, then the high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _bits(packed: Tensor, width: int) -> Tensor:
    """Split bytes into fields of `width` bits, [..., bytes, 8 / width]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    return packed.unsqueeze(-1) >> shifts & (1 << width) - 1


def _strided(packed: Tensor) -> Tensor:
    """Two bits per element, in two halves of 128 elements: each of 32 bytes has those of four
    elements at a stride of 32, [blocks, 64] -> [blocks, 2, 4, 32]."""
    return _bits(packed.reshape(-1, 2, 32), 2).transpose(2, 3).contiguous()


def _looked_up(values: Tensor, codes: Tensor) -> Tensor:
    return values.index_select(0, codes.flatten().int()).view(codes.shape)


def _fifths(blocks: Tensor, offset: int) -> Tensor:
    """Five bits per element: 32 high bits at an offset, then 32 times the low 4 bits."""
    high = _bits(blocks[:, offset : offset + 4], 1).flatten(1)
    return _int4s(blocks[:, offset + 4 : offset + 20]) | high << 4


def _q4_0(blocks: Tensor) -> Coded:
    step = _half(blocks, 0)
    return _int4s(blocks[:, 2:]), step, -8 * step


def _q4_1(blocks: Tensor) -> Coded:
    return _int4s(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Coded:
    return _fifths(blocks, 2).to(torch.int8).sub_(16), _half(blocks, 0), None


def _q5_1(blocks: Tensor) -> Coded:
    return _fifths(blocks, 4).to(torch.int8), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Coded:
    return blocks[:, 2:].view(torch.int8), _half(blocks, 0), None


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum of the eight parts of a block, 6 bits each in 12 bytes at offset 4.

    The first four of each have a byte, whose high two bits belong to the last four:

        byte   0..3  scale 0..3, high bits of scale 4..7
               4..7  minimum 0..3, high bits of minimum 4..7
               8..11 low four bits of scale 4..7, then of minimum 4..7
    """
    scale, minimum, low = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scales = torch.cat((scale & 63, low & 15 | scale >> 6 << 4), dim=1)
    minima = torch.cat((minimum & 63, low >> 4 | minimum >> 6 << 4), dim=1)
    return scales.float().mul_(_half(blocks, 0)), minima.float().mul_(_half(blocks, 2))


def _q4_k(blocks: Tensor) -> Coded:
    scales, minima = _k_scales(blocks)
    return _int4s(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1), scales, -minima


def _q5_k(blocks: Tensor) -> Coded:
    low = _int4s(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    high = _bits(blocks[:, 16:48], 1).transpose(1, 2)  # [blocks, 8, 32]
    scales, minima = _k_scales(blocks)
    return (low | high << 4).to(torch.int8).flatten(1), scales, -minima


def _q6_k(blocks: Tensor) -> Coded:
    """Two halves of 128; in each, 32 bytes have the high two bits of four times 32 elements."""
    low = _int4s(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    codes = (low | _strided(blocks[:, 128:192]) << 4).to(torch.int8).sub_(32)
    scales = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks, 208))
    return codes.flatten(1), scales, None


def _q2_k(blocks: Tensor) -> Coded:
    """A byte for each 16 elements has their scale in the low bits, their minimum in the high."""
    scales = (blocks[:, :16] & 15).float().mul_(_half(blocks, 80))
    minima = (blocks[:, :16] >> 4).float().mul_(_half(blocks, 82))
    return _strided(blocks[:, 16:80]).flatten(1), scales, -minima


def _q3_k(blocks: Tensor) -> Coded:
    """The high bits come first. The 16 scales have 6 bits each in 12 bytes at offset 96:

    byte   0..7   low four bits of scale 0..7, then of scale 8..15
           8..11  high two bits of scale 0..3, then of 4..7, 8..11 and 12..15
    """
    third = _bits(blocks[:, :32], 1).transpose(1, 2).reshape(-1, 2, 4, 32)
    codes = (_strided(blocks[:, 32:96]) | third << 2).flatten(1)
    high = _bits(blocks[:, 104:108], 2).transpose(1, 2).flatten(1)  # [blocks, 16]
    scales = (_int4s(blocks[:, 96:104]) | high << 4).float().sub_(32)
    scales.mul_(_half(blocks, 108))
    return codes, scales, -4 * scales


def _iq4_nl(blocks: Tensor) -> Coded:
    return _looked_up(UNEVEN, _int4s(blocks[:, 2:])), _half(blocks, 0), None


def _iq4_xs(blocks: Tensor) -> Coded:
    """Eight parts, whose scales have their high two bits at offset 2 and their low four at 4."""
    high = _bits(blocks[:, 2:4], 2).flatten(1)  # [blocks, 8]
    scales = (_bits(blocks[:, 4:8], 4).flatten(1) | high << 4).float().sub_(32)
    codes = _int4s(blocks[:, 8:].reshape(-1, 8, 16)).flatten(1)
    return _looked_up(UNEVEN, codes), scales.mul_(_half(blocks, 0)), None


def _mxfp4(blocks: Tensor) -> Tensor:
    powers = blocks[:, :1].int().sub_(fp4.BIAS)
    return torch.ldexp(_looked_up(fp4.VALUES, _int4s(blocks[:, 1:])), powers)


def _ternary(packed: Tensor, digits: int) -> Tensor:
    """The base-3 digits of bytes, which are fractions of 256: all first digits, then all second
    ones, and so on."""
    powers = torch.tensor([3**digit for digit in range(digits)], dtype=torch.uint8)
    shifted = packed.unsqueeze(1) * powers.view(-1, 1)  # modulo 256
    return (shifted.short() * 3 >> 8).flatten(1)


def _tq1_0(blocks: Tensor) -> Tensor:
    parts = (blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)
    elements = torch.cat([_ternary(*part) for part in parts], dim=1)
    return elements.float().sub_(1).mul_(_half(blocks, 52))


def _tq2_0(blocks: Tensor) -> Tensor:
    return _strided(blocks[:, :64]).flatten(1).float().sub_(1).mul_(_half(blocks, 64))


def _numbers(coded: Callable[[Tensor], Coded], blocks: Tensor) -> Tensor:
    return CodedMatrix(*coded(blocks)).dense()


CODED: dict[str, Callable[[Tensor], Coded]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": lambda blocks: blocks.view(torch.float32),
    "F16": lambda blocks: blocks.view(torch.float16),
    "BF16": lambda blocks: blocks.view(torch.bfloat16),
    **{name: partial(_numbers, coded) for name, coded in CODED.items()},
    "MXFP4": _mxfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}


EXACT = {"F32", "F16", "BF16"}


class GGUF:
    """A checkpoint in llama.cpp's format. The file stays mapped while the checkpoint is used.

    Tensors that are not in the model's description keep their names.
    """

    def __init__(self, path: Path, quantization: str = "auto") -> None:
        self.files = [path]
        file = read_gguf(path)
        tensors = dict(file.tensors)
        factors = {name: tensors.pop(name) for name in ALL_FACTORS if name in tensors}
        numbers = {name: to_floats(dequantised(tensor)) for name, tensor in factors.items()}
        config = ModelConfig.of_gguf(file.fields, GGUFTensors(tensors.keys(), numbers))
        self.config = config.loaded_as(quantization)
        described = describe(self.config).tensors
        self._forms = {tensor.name: form_in(tensors, tensor.gguf) for tensor in described}
        self._wanted = {tensor.name: tensor.whole_shape for tensor in described}
        known = {one for form in self._forms.values() for one in (form.name, *form.apart)}
        known.update(name for name in tensors if name.startswith(self.config.ignored))
        self._tensors = {name: tensors[name] for name in tensors if name not in known}
        self._apart: dict[str, tuple[GGUFTensor, ...]] = {}  # keys and values
        for name, form in self._forms.items():
            if form.name in tensors:
                self._add(name, tensors[form.name], form)
            elif form.apart and all(one in tensors for one in form.apart):
                self._apart[name] = tuple(tensors[one] for one in form.apart)

    def _add(self, name: str, stored: GGUFTensor, form: GGUFForm) -> None:
        if form.part is not None:
            if form.part >= stored.shape[0]:
                return
            stored = stored.part(form.part)
        if form.rows and max(end for _, end in form.rows) <= stored.shape[0]:
            stored = stored.rows(form.rows)
        self._tensors[name] = stored

    @property
    def is_quantized(self) -> bool:
        kinds = {tensor.encoding.name for tensor in self._tensors.values()}
        return self.config.quantization != UNQUANTIZED or not kinds <= EXACT

    @property
    def shapes(self) -> dict[str, Shape]:
        found = {name: self._shape(name) for name in self._tensors}
        for name, (keys, values) in self._apart.items():
            heads, rank, outputs = keys.shape
            found[name] = heads * (outputs + values.shape[1]), rank
        return found

    def _shape(self, name: str) -> Shape:
        stored, wanted = self._tensors[name].shape, self._wanted.get(name, ())
        if name not in self._forms or not self._forms[name].any_shape:
            return stored
        return wanted if prod(stored) == prod(wanted) else stored

    def read(self, name: str) -> Tensor:
        if (apart := self._apart.get(name)) is not None:
            keys, values = map(dequantised, apart)
            return torch.cat((keys.mT, values), dim=1).flatten(0, 1)
        tensor, form = dequantised(self._tensors[name]), self._forms[name]
        if form.paired_heads:
            return unpaired(tensor, form.paired_heads)
        if form.any_shape:
            tensor = tensor.reshape(self._shape(name))
        if form.is_decay:
            return (-tensor).log_()
        if form.columns:
            tensor = torch.cat([tensor[:, first:end] for first, end in form.columns], dim=1)
        return tensor - form.offset if form.offset else tensor

    def matrix(self, name: str) -> Matrix | None:
        if name in self._apart:
            return None
        form = self._forms[name]
        matrix = coded_matrix(self._tensors[name], form.paired_heads)
        if matrix is None or not form.columns:
            return matrix
        # Columns stay as they are stored, and inputs are put in their order.
        stored = torch.cat([torch.arange(first, end) for first, end in form.columns])
        return OrderedMatrix(matrix, stored.argsort())


def form_in(names: Collection[str], form: GGUFForm) -> GGUFForm:
    """The form that a file with tensors of these names has."""
    is_other = form.instead is not None and form.name not in names
    return form.instead if is_other and form.instead is not None else form


def coded_matrix(tensor: GGUFTensor, heads: int) -> CodedMatrix | None:
    """The codes of a tensor, rows of whose heads are stored in pairs; None: it has other ones."""
    if (coded := CODED.get(tensor.encoding.name)) is None:
        return None
    matrix = CodedMatrix(*coded(from_numpy(tensor.blocks)))
    parts = (one.reshape(tensor.shape[0], -1) for one in matrix.tensors)
    return matrix.with_tensors(unpaired(one, heads) if heads else one for one in parts)


def unpaired(tensor: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from x0 y0 x1 y1 … to x0 x1 … y0 y1 …; pair i is (xi, yi)."""
    paired = tensor.view(heads, -1, 2, *tensor.shape[1:])  # [heads, head_dim / 2, 2, …]
    return paired.transpose(1, 2).reshape(tensor.shape)
