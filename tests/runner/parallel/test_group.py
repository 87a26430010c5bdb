"""What ranks exchange."""

import pytest
import torch

from paceline.runner.parallel.group import ExchangeFailed, RankGroup
from tests.runner.parallel.ranks import on_ranks


def test_sums_reach_every_rank() -> None:
    found = on_ranks(3, lambda group: group.sum(torch.full((2,), 1.0 + group.shard.rank)))
    assert [one.tolist() for one in found] == [[6.0, 6.0]] * 3


def test_sums_in_order_add_ranks_one_after_the_other() -> None:
    """In float32: 4096 + 1 is 4096 in bfloat16, in which sums are rounded once."""
    parts = torch.tensor([[4096.0, 1.0], [8.0, 1e8], [8.0, -1e8]]).bfloat16()
    found = on_ranks(3, lambda group: group.sum_in_order(parts[group.shard.rank].clone()))
    due = ((parts[0].float() + parts[1].float()) + parts[2].float()).bfloat16()
    assert all(torch.equal(one, due) for one in found)


def test_columns_reach_rank_0_in_the_order_of_ranks() -> None:
    first, second = on_ranks(2, lambda group: group.gather(torch.full((2, 1), group.shard.rank)))
    assert first.tolist() == [[0, 1], [0, 1]]
    assert second.shape == (2, 0)


def test_what_rank_0_has_reaches_every_rank() -> None:
    def work(group: RankGroup) -> tuple[list[int], int]:
        return group.share(torch.tensor([7 + group.shard.rank])).tolist(), group.least(
            9 - group.shard.rank
        )

    assert on_ranks(2, work) == [([7], 8), ([7], 8)]


def test_an_exchange_with_a_rank_that_is_gone_fails() -> None:
    def work(group: RankGroup) -> None:
        group.least(0)  # both are connected
        if group.is_first:
            with pytest.raises(ExchangeFailed):
                group.sum(torch.ones(2))
        else:
            del group._group

    on_ranks(2, work)
