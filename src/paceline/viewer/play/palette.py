"""The symbols and colours of the picture, and the painting of text with them."""

from dataclasses import dataclass
from unicodedata import combining, east_asian_width

from paceline.viewer.play.history import Cell, Kind


@dataclass(frozen=True, slots=True)
class Mark:
    """How something looks, and what it means."""

    symbol: str
    plain: str  # where only ASCII can be shown
    colour: str  # parameters of the terminal's "select graphic rendition"
    meaning: str


MARKS = {
    Kind.PREFILL: Mark("▶", ">", "48;5;25;38;5;255", "prefill"),
    Kind.HIT: Mark("◆", "+", "48;5;37;38;5;16", "prefill after a prefix hit"),
    Kind.AGAIN: Mark("↻", "^", "48;5;130;38;5;255", "computed again"),
    Kind.FORKED: Mark("↳", "\\", "48;5;62;38;5;255", "forked after the prompt"),
    Kind.REPLACED: Mark("⇄", "<", "48;5;97;38;5;255", "beam that goes on from another"),
    Kind.RETURNED: Mark("↑", "A", "48;5;143;38;5;16", "swapped in"),
    Kind.DECODE: Mark("•", "=", "48;5;28;38;5;255", "decode"),
    Kind.DRAFTED: Mark("»", "*", "48;5;91;38;5;255", "decode with drafts"),
    Kind.LAST: Mark("■", "#", "48;5;252;38;5;16;1", "finished"),
    Kind.DROPPED: Mark("~", "~", "48;5;238;38;5;250", "computed, result dropped"),
    Kind.IDLE: Mark("–", "-", "38;5;244", "resident, computes nothing"),
    Kind.WAITING: Mark("·", ".", "38;5;244", "waiting"),
    Kind.PARKED: Mark("z", "z", "38;5;179", "parked"),
    Kind.PREEMPTED: Mark("✗", "x", "48;5;160;38;5;255;1", "preempted"),
    Kind.SWAPPED: Mark("↓", "v", "48;5;178;38;5;16;1", "swapped out"),
    Kind.ON_HOST: Mark("⌂", "h", "38;5;178", "waiting on the host"),
    Kind.ABORTED: Mark("†", "%", "48;5;88;38;5;255", "aborted"),
    Kind.REFUSED: Mark("!", "!", "48;5;88;38;5;255", "refused"),
}
SHARED = Mark("▓", "@", "38;5;79", "shared")
HELD = Mark("█", "#", "38;5;243", "held")
CACHED = Mark("░", "o", "38;5;37", "cached, free")
BLANK = Mark("·", ".", "38;5;240", "blank")
POOL = (SHARED, HELD, CACHED, BLANK)
STORED = Mark("▒", "h", "38;5;178", "swapped out")
STEPS = {
    "prefill": Mark("pre", "pre", "38;5;75", "nothing but prefill"),
    "decode": Mark("dec", "dec", "38;5;71", "nothing but decode"),
}

BACKGROUND = "48;"  # how the colours of a filled cell begin
DIM = "38;5;245"
STRONG = "1"
FULL = "38;5;214"


@dataclass(frozen=True, slots=True)
class Palette:
    """What the terminal can show. Widths are counted before painting."""

    colour: bool
    unicode: bool

    def symbol(self, mark: Mark) -> str:
        return mark.symbol if self.unicode else mark.plain

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and text.strip() else text

    def key(self, mark: Mark) -> str:
        """One entry of a legend."""
        return f"{self.paint(self.symbol(mark), mark.colour)} {mark.meaning}"

    def key_size(self, mark: Mark) -> int:
        return len(self.symbol(mark)) + 1 + len(mark.meaning)

    def cell(self, cell: Cell | None, width: int) -> str:
        """Symbol and number in `width` letters, with one more to the left."""
        if cell is None:
            return " " * (width + 1)
        mark = MARKS[cell.look]
        text = self.symbol(mark) + (str(cell.tokens) if cell.tokens else "")
        if self.colour and mark.colour.startswith(BACKGROUND):
            return " " + self._block(cell, mark, text.rjust(width))
        return " " * (width + 1 - len(text)) + self.paint(text, mark.colour)

    def _block(self, cell: Cell, mark: Mark, text: str) -> str:
        """A coloured block; its edge tells a hit where the cell itself says something else."""
        if cell.cached and cell.look is not Kind.HIT:
            return self.paint(text[0].replace(" ", "\u00a0"), MARKS[Kind.HIT].colour) + self.paint(
                text[1:], mark.colour
            )
        return self.paint(text, mark.colour)

    def ruled(self, text: str) -> str:
        """Prose in the letters that can be shown."""
        return text if self.unicode else text.translate(ASCII_LETTERS)


ASCII_LETTERS = str.maketrans({"–": "-", "·": ",", "…": "~", "┤": "|"})


def letters(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """Exactly `width` columns: filled up, or cut."""
    if letters(text) > width:
        while text and letters(text) + len(ellipsis) > width:
            text = text[:-1]
        text += ellipsis
    return text + " " * (width - letters(text))
