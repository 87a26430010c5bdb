"""Where tokens begin in a text, in characters, as `logprobs` of completions tell it."""

from collections.abc import Iterable, Sequence

from paceline.text.detokenizer import Detokenizer, utf8_decoder
from paceline.text.tokenizer import Tokenizer


class TokenOffsets:
    """Where tokens begin in a text, which each of them makes longer by what it completes.

    So a token that ends a character begins where the character does, and one that is left out of
    the text makes it no longer. `prompt` comes before the text, whose first token is at `at`.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool, prompt: Sequence[int] = (), at: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, prompt=prompt)
        self._bytes = tokenizer.spelled(skip_special)
        self._at = at

    def of(self, ids: Iterable[int]) -> list[int]:
        """Those of the next tokens."""
        return [self._next(id) for id in ids]

    def _next(self, id: int) -> int:
        completed = len(self._detokenizer.push((id,)))
        own = len(utf8_decoder("replace").decode(self._bytes[id]))
        # One character more than its own is half a one, left by those before it.
        begin = self._at + max(completed - own, 0)
        self._at += completed
        return begin


def echoed_offsets(tokenizer: Tokenizer, ids: Sequence[int], text: str, given: bool) -> list[int]:
    """Those of a prompt's tokens in its text, which was given or else is that of the tokens.

    A text that was given has all of its special tokens, and none of those that frame it.
    """
    before, after = framing(tokenizer) if given else (0, 0)
    inner = TokenOffsets(tokenizer, skip_special=not given).of(ids[before : len(ids) - after])
    return [min(at, len(text)) for at in (*[0] * before, *inner, *[len(text)] * after)]


def framing(tokenizer: Tokenizer) -> tuple[int, int]:
    """How many tokens are put before a text, and how many behind it."""
    framed, bare = tokenizer.encode("x"), tokenizer.encode("x", special=False)
    places = range(len(framed) - len(bare), -1, -1)
    before = next((at for at in places if framed[at : at + len(bare)] == bare), 0)
    return before, len(framed) - len(bare) - before
