"""One request of a load: when it comes, what its prompt is made of, how much it wants."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; equal segments are equal tokens."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Call:
    """Prompts that begin with the same segments share a prefix."""

    at_s: float  # since the load began
    segments: tuple[Segment, ...]
    output_len: int  # tokens
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None  # from arrival to the first token

    @property
    def input_len(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    def cut(self, most_input: int, most_output: int) -> "Call":
        """No longer than this, in tokens; what is cut off is the end of the prompt."""
        room, kept = most_input, list[Segment]()
        for segment in self.segments:
            if room <= 0:
                break
            kept.append(Segment(segment.key, min(segment.tokens, room)))
            room -= segment.tokens
        return replace(self, segments=tuple(kept), output_len=min(self.output_len, most_output))
