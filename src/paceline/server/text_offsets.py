"""The character offsets of tokens in a text, for `logprobs` of completions."""

from collections.abc import Iterable, Sequence

from paceline.text.detokenizer import Detokenizer, utf8_decoder
from paceline.text.tokenizer import Tokenizer


class TokenOffsets:
    """The offset of each token in a text, which grows by the characters that a token completes.

    A token that completes a character begins where the character begins. A token that is left out
    of the text adds nothing. `prompt` precedes the text, whose first token is at `at`.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool, prompt: Sequence[int] = (), at: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, prompt=prompt)
        self._bytes = tokenizer.spelled(skip_special)
        self._at = at

    def of(self, ids: Iterable[int]) -> list[int]:
        """The offsets of the next tokens."""
        return [self._next(id) for id in ids]

    def _next(self, id: int) -> int:
        completed = len(self._detokenizer.push((id,)))
        own = len(utf8_decoder("replace").decode(self._bytes[id]))
        # A character beyond its own was begun by earlier tokens.
        begin = self._at + max(completed - own, 0)
        self._at += completed
        return begin


def echoed_offsets(tokenizer: Tokenizer, ids: Sequence[int], text: str, given: bool) -> list[int]:
    """The offsets of a prompt's tokens in `text`, which is the given text, or decoded from the ids.

    A text contains its special tokens; a given one has none that the tokenizer adds around it.
    """
    before, after = framing(tokenizer) if given else (0, 0)
    inner = TokenOffsets(tokenizer, skip_special=False).of(ids[before : len(ids) - after])
    return [min(at, len(text)) for at in (*[0] * before, *inner, *[len(text)] * after)]


def framing(tokenizer: Tokenizer) -> tuple[int, int]:
    """The number of special tokens that the tokenizer adds before and after a text."""
    framed, bare = tokenizer.encode("x"), tokenizer.encode("x", special=False)
    places = range(len(framed) - len(bare), -1, -1)
    before = next((at for at in places if framed[at : at + len(bare)] == bare), 0)
    return before, len(framed) - len(bare) - before
