"""Groups of layers that read the same positions, each with block tables of its own."""

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from paceline.core.arrays import I32
from paceline.core.setting_checks import check_types, one_of, positive, require

AttentionKind = Literal["full", "sliding_window", "chunked_local"]
Positions = TypeVar("Positions", int, I32)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that read the same positions.

        full              all positions up to its own
        sliding_window    the last `window` positions up to its own
        chunked_local     those of its own chunk: `window` positions, counted from the first one

    All groups of a model have the same number of layers, so a block has the same size in each.
    """

    kind: AttentionKind = "full"
    window: int = 0  # positions of a window or of a chunk; 0 for full attention
    count: int = 1  # groups of this kind; each has its own block tables

    def __post_init__(self) -> None:
        check_types(self)
        one_of("the kind of an attention group", self.kind, get_args(AttentionKind))
        positive(self, "count")
        require(
            (self.window > 0) == self.slides,
            f"the window of a {self.kind} attention group is {self.window}; it must be "
            f"{'positive' if self.slides else '0'}",
        )

    @property
    def slides(self) -> bool:
        """Whether a sequence reads its first positions no more when it has grown."""
        return self.kind != "full"

    def unread(self, computed: Positions) -> Positions:
        """How many of the first positions no position from `computed` on reads."""
        if self.kind == "full":
            return computed * 0
        if self.kind == "sliding_window":
            return (computed - self.window + 1) * (computed >= self.window)
        return computed // self.window * self.window

    def to_dict(self) -> dict[str, Any]:
        """Plain data, from which `attention_groups` makes the same group."""
        return {"kind": self.kind, "window": self.window, "count": self.count}


FULL_ATTENTION: tuple[AttentionGroup, ...] = (AttentionGroup(),)


def attention_groups(given: Any) -> tuple[AttentionGroup, ...]:
    """Groups from groups or plain data. ConfigError if they cannot be."""
    complaint = (
        f"attention_groups is {given!r}; it lists groups such as "
        '{"kind": "sliding_window", "window": 1024, "count": 5}'
    )
    require(isinstance(given, list | tuple) and given not in ([], ()), complaint)
    return tuple(_group(one, complaint) for one in cast("list[Any]", given))


def _group(given: Any, complaint: str) -> AttentionGroup:
    if isinstance(given, AttentionGroup):
        return given
    require(isinstance(given, dict), complaint)
    plain = cast("dict[str, Any]", given)
    require(plain.keys() <= {"kind", "window", "count"}, complaint)
    return AttentionGroup(**plain)
