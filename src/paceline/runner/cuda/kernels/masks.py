"""A kernel that applies packed masks to logits."""

# Kernels take pointers, strides and sizes one by one.

import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096  # logits that one program looks at
BITS = tl.constexpr(32)


def mask_logits(logits: Tensor, mask_of: Tensor, bits: Tensor) -> None:
    """Give tokens that are not allowed a logit of -inf; other logits are not touched.

    Line i of logits [lines, vocab] has mask `mask_of[i]`, or none if that is negative. Bit b of
    word w of a mask allows the token 32 w + b; `bits` has all masks, one after the other.
    """
    lines, vocab = logits.shape
    _mask[(lines, triton.cdiv(vocab, CHUNK))](logits, mask_of, bits, VOCAB=vocab, CHUNK=CHUNK)


@triton.jit
def _mask(logits, mask_of, bits, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    line, chunk = tl.program_id(0), tl.program_id(1)
    mask = tl.load(mask_of + line)
    if mask >= 0:
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        words = (VOCAB + BITS - 1) // BITS
        is_token = at < VOCAB
        word = tl.load(bits + mask.to(tl.int64) * words + at // BITS, mask=is_token, other=0)
        is_forbidden = ((word >> (at % BITS)) & 1) == 0
        line_start = logits + line.to(tl.int64) * VOCAB
        tl.store(line_start + at, float("-inf"), mask=is_token & is_forbidden)
