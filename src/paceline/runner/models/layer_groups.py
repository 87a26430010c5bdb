"""Groups of layers that read one block table, from the windows of all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

SPREAD = 1.25  # windows whose numbers of layers differ by less have one group each

Window = int | None  # positions that a position sees, itself included; None: all


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """Which block table each layer reads, and its place within a block.

        layer     0   1   2   3   4   5   6   7        2 and 5 see everything, the others a window
        window    w   w   .   w   w   .   w   w
        group     1   2   0   3   1   0   2   3        group 0 has all that see everything
        place     0   0   0   0   1   1   1   1        blocks of all groups have two places

    windows   [groups]; of all layers in a group
    group     [layers]
    place     [layers]
    places    layers that a block has room for; a group may have fewer
    """

    windows: tuple[Window, ...]
    group: tuple[int, ...]
    place: tuple[int, ...]
    places: int

    def __len__(self) -> int:
        return len(self.windows)

    @staticmethod
    def one(layers: int) -> "LayerGroups":
        """All layers in one group that keeps every position, whatever their windows."""
        return LayerGroups((None,), (0,) * layers, tuple(range(layers)), layers)


def layer_groups(windows: Sequence[Window]) -> LayerGroups:
    """Divide layers of each window into groups of one size, so that blocks of all groups have the
    same size and share one pool.

    The size is the smallest number of layers of a window, or the largest if they hardly differ:
    then each window is one group. Groups of fewer layers leave places of their blocks empty.
    """
    kinds = sorted(set(windows), key=lambda window: (window is not None, window or 0))
    own = {kind: [layer for layer, one in enumerate(windows) if one == kind] for kind in kinds}
    counts = [len(layers) for layers in own.values()]
    least, most = min(counts), max(counts)
    size = most if most < SPREAD * least else least
    found: list[Window] = []
    group, place = [0] * len(windows), [0] * len(windows)
    for kind, layers in own.items():
        number = -(-len(layers) // size)
        for index, layer in enumerate(layers):
            group[layer], place[layer] = len(found) + index % number, index // number
        found += [kind] * number
    return LayerGroups(tuple(found), tuple(group), tuple(place), max(place) + 1)
