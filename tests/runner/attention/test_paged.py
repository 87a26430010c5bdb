import torch

from paceline.runner.attention.paged import QueryPositions, Row, grouped


def row(count: int, blocks: int, index: int = 0) -> Row:
    return Row(index, first=0, count=count, context=count, skipped=0, blocks=blocks)


def shapes(rows: list[Row], most_blocks: int = 1_000) -> list[list[tuple[int, int]]]:
    return [[(r.count, r.blocks) for r in group] for group in grouped(rows, most_blocks)]


def test_decodes_of_similar_context_go_together() -> None:
    assert shapes([row(1, 8), row(1, 12), row(1, 7)]) == [[(1, 12), (1, 8), (1, 7)]]


def test_a_context_less_than_half_as_long_is_not_padded() -> None:
    assert shapes([row(1, 8), row(1, 17), row(1, 9)]) == [[(1, 17), (1, 9)], [(1, 8)]]


def test_a_group_ends_where_the_scratch_does() -> None:
    rows = [row(1, 4) for _ in range(5)]
    assert [len(group) for group in grouped(rows, most_blocks=8)] == [2, 2, 1]
    assert [len(group) for group in grouped(rows, most_blocks=3)] == [1] * 5


def test_rows_of_other_lengths_stay_apart_and_long_ones_alone() -> None:
    rows = [row(4, 5), row(30, 5), row(1, 5), row(4, 5), row(30, 5)]
    assert shapes(rows) == [[(30, 5)], [(30, 5)], [(4, 5), (4, 5)], [(1, 5)]]


def test_every_row_is_in_one_group() -> None:
    rows = [row(1 + n % 3, 1 + n * 7 % 40, n) for n in range(60)]
    indices = [r.index for group in grouped(rows, most_blocks=64) for r in group]
    assert sorted(indices) == list(range(60))


def test_what_is_out_of_sight() -> None:
    query_at, key_at = torch.tensor([3, 4]), torch.tensor([1, 2, 3, 4, 5])
    causal = QueryPositions(query_at, query_at + 1, True)
    whole = QueryPositions(query_at, torch.tensor([6, 6]), False)
    assert causal.unseen(key_at, None).int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    assert causal.unseen(key_at, 2).int().tolist() == [[1, 0, 0, 1, 1], [1, 1, 0, 0, 1]]
    assert whole.unseen(key_at, None).int().tolist() == [[0] * 5] * 2
    assert whole.unseen(key_at, 2).int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
