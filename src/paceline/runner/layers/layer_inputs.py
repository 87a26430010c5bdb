"""What some layers of a decoder read, for a head that drafts from it."""

from torch import Tensor


class LayerInputs:
    """Copies of the residual stream before some layers, side by side.

    rows   | before layer 2 | before layer 16 | before layer 29 |     one for each position
    """

    def __init__(self, layers: tuple[int, ...], rows: Tensor) -> None:
        """`rows` [positions or more, layers * width] is overwritten."""
        self.layers, self.rows = layers, rows

    def keep(self, layer: int, hidden: Tensor) -> None:
        """Copy the residual stream [positions, width] if this layer is one of them."""
        for place, one in enumerate(self.layers):
            if one == layer:
                width = hidden.shape[1]
                self.rows[: len(hidden), place * width : (place + 1) * width] = hidden
