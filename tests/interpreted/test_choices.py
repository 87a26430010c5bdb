"""The choice of tokens for a GPU, against the one for a CPU."""

import pytest
import torch

from paceline.runner.cuda.kernels.sampling import choose
from paceline.runner.sampling.token_choice import Greedy, RandomDraw, key_of

ALL = slice(None)


def expected(
    logits: torch.Tensor, heat: torch.Tensor, keys: torch.Tensor, at: torch.Tensor
) -> list[int]:
    drawn, _ = RandomDraw(ALL, keys, heat[:, None].clamp(min=1e-9), ()).choose(
        logits.clone(), at.long()
    )
    likeliest, _ = Greedy(ALL).choose(logits, at.long())
    chosen = torch.where(heat > 0, drawn, likeliest)
    return torch.where(logits.isnan().any(1), -1, chosen).tolist()


@pytest.mark.parametrize("vocab", [257, 512, 8192 + 64, 32_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_tokens(vocab: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(vocab)
    rows = 9
    spread = torch.tensor([0.1, 1, 4, 10, 1, 3, 8, 2, 1])[:, None]
    logits = (torch.randn(rows, vocab, generator=random) * spread).to(dtype)
    logits[0, ::7] = float("-inf")
    logits[1, : vocab // 2] = float("-inf")
    logits[2, : vocab // 2] -= 500  # nobody there has a weight
    if dtype == torch.float32:  # the interpreter compares others by their bits
        logits[6, 3] = float("nan")
    temperature = torch.rand(rows + 3, generator=random) + 0.1
    temperature[4] = 0.0
    keys = torch.tensor([key_of(77 * slot) for slot in range(rows + 3)])
    slot = torch.randperm(rows + 3, generator=random)[:rows].int()
    slot[5] = 4
    context = torch.randint(1, 50, (rows,), generator=random).int()
    ids = torch.zeros(rows, dtype=torch.int32)
    choose(logits, temperature, keys, slot, context, ids)
    own = slot.long()
    assert ids.tolist() == expected(logits.float(), temperature[own], keys[own], context)


def test_rows_without_a_number_to_choose() -> None:
    logits = torch.zeros(3, 64)
    logits[0] = float("-inf")
    logits[1, 9] = float("inf")
    ids, slot = torch.zeros(3, dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    keys = torch.arange(3)
    for heat in (0.0, 0.7):
        choose(logits, torch.full((3,), heat), keys, slot, slot + 1, ids)
        assert ids[:2].tolist() == [-1, -1]
        assert 0 <= int(ids[2]) < 64
