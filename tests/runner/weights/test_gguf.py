import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from paceline.runner.layers.packing import PackedWeights
from paceline.runner.weights.gguf import CODED, DECODERS, coded_matrix, dequantised, unpaired
from paceline.runner.weights.gguf_file import ENCODINGS, GGUFTensor

# Where each type keeps its float16 factors; every other byte of a block may be anything.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
    "TQ1_0": [52],
    "TQ2_0": [64],
}


@pytest.mark.parametrize("name", HALVES)
def test_any_block_decodes_as_ggufs_own_decoder_does(name: str) -> None:
    kind = Kind[name]
    encoding = ENCODINGS[int(kind)]
    assert encoding.name == name
    assert gguf.GGML_QUANT_SIZES[kind] == (encoding.elements, encoding.block_bytes)
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (48, encoding.block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [*range(24), *range(228, 252)]  # larger ones overflow, and 255 is no number
    for place in HALVES[name]:
        factors = random.normal(size=(48, 1)).astype(np.float16)
        blocks[:, place : place + 2] = factors.view(np.uint8)
    expected = gguf.quants.dequantize(blocks.reshape(4, -1), kind)
    tensor = GGUFTensor((4, 12 * encoding.elements), encoding, blocks)
    least = 0 if name == "MXFP4" else 1e-6  # its numbers may be as small as they can be
    torch.testing.assert_close(
        dequantised(tensor), torch.from_numpy(expected), rtol=1e-6, atol=least
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_numbers_keep_their_type(dtype: torch.dtype) -> None:
    numbers = torch.randn(6, 5).to(dtype)
    name = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
    encoding = next(encoding for encoding in ENCODINGS.values() if encoding.name == name)
    blocks = numbers.view(-1, 1).view(torch.uint8).numpy()
    assert torch.equal(dequantised(GGUFTensor((6, 5), encoding, blocks)), numbers)


def test_every_encoding_has_a_decoder() -> None:
    assert {encoding.name for encoding in ENCODINGS.values()} == DECODERS.keys()
    assert DECODERS.keys() - HALVES.keys() == {"F32", "F16", "BF16"}


def test_the_guide_lists_every_encoding() -> None:
    guide = Path(__file__).parents[3] / "docs/guides/models.md"
    sentence = guide.read_text().partition("may have the types ")[2].partition(".\n")[0]
    listed = re.split(r",\s+|\s+and\s+", sentence)
    assert sorted(listed) == sorted(encoding.name for encoding in ENCODINGS.values())


BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4}  # on a CPU, whose kernels have no groups of 16 inputs


@pytest.mark.parametrize("name", CODED)
def test_codes_are_kept(name: str) -> None:
    """The kernels of a CPU read those of 4 bits as they are, so nothing is lost but what 16 bits
    lose of a step. They round others to 8 bits."""
    random = np.random.default_rng(3)
    encoding = next(one for one in ENCODINGS.values() if one.name == name)
    rows, across = 32, 512 // encoding.elements
    blocks = random.integers(0, 256, (rows * across, encoding.block_bytes), dtype=np.uint8)
    for place in HALVES[name]:
        factors = random.uniform(0.5, 1.0, (len(blocks), 1)).astype(np.float16)
        blocks[:, place : place + 2] = factors.view(np.uint8)
    tensor = GGUFTensor((rows, 512), encoding, blocks)
    matrix = coded_matrix(tensor, 0)
    assert matrix is not None
    assert torch.equal(matrix.dense(), dequantised(tensor))
    assert PackedWeights.of(matrix).bits == BITS.get(name, 8)
    heads = coded_matrix(tensor, 2)
    assert heads is not None
    assert torch.equal(heads.dense(), unpaired(dequantised(tensor), 2))
