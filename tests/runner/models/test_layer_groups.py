import pytest

from paceline.runner.models.layer_groups import LayerGroups, Window, layer_groups


def layout(kinds: str, window: int = 8) -> tuple[Window, ...]:
    """A window for each `w`, and none for each dot."""
    return tuple(window if kind == "w" else None for kind in kinds)


def test_layers_of_one_kind_are_one_group() -> None:
    assert layer_groups(layout("....")) == LayerGroups.one(4)
    assert layer_groups(layout("www")) == LayerGroups((8,), (0, 0, 0), (0, 1, 2), 3)


def test_groups_have_as_many_places_as_the_rarest_kind_has_layers() -> None:
    found = layer_groups(layout("ww.ww.ww"))
    assert found.windows == (None, 8, 8, 8)
    assert found.group == (1, 2, 0, 3, 1, 0, 2, 3)
    assert found.index == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.layers_per_block == 2


def test_nearly_equal_kinds_have_one_group_each() -> None:
    """Of six and five layers, the larger number: a few indices stay empty."""
    found = layer_groups(layout("w.w.w.w.w.w"))
    assert (found.windows, found.layers_per_block) == ((None, 8), 6)


def test_windows_of_several_lengths_have_groups_of_their_own() -> None:
    found = layer_groups((4, None, 16, 4, None, 4))
    assert found == LayerGroups((None, None, 4, 4, 4, 16), (2, 0, 5, 3, 1, 4), (0,) * 6, 1)


@pytest.mark.parametrize(
    "kinds", ["wwwww." * 4 + "ww", "w." * 12, "wwwww." * 10 + "ww", "ww.", "."]
)
def test_each_layer_has_a_place_of_its_own(kinds: str) -> None:
    found = layer_groups(layout(kinds))
    indices = set(zip(found.group, found.index, strict=True))
    assert len(indices) == len(kinds)
    assert max(found.index) < found.layers_per_block
    assert [found.windows[group] for group in found.group] == list(layout(kinds))
