"""Log-probabilities of the tokens that the text of a message is made of."""

from collections import deque

from paceline.engine.api import TextDelta
from paceline.server.schemas.completions import ChatLogprob, chat_logprobs
from paceline.server.text_offsets import TokenOffsets
from paceline.tools.calls import ContentDelta


class MessageLogprobs:
    """Tokens wait until a parser has decided what their text is.

    A token belongs to a message if a part of its text does. Tokens of reasoning, of calls and of
    markers are left out.
    """

    def __init__(self, offsets: TokenOffsets) -> None:
        self._offsets = offsets
        self._waiting: deque[tuple[int, ChatLogprob]] = deque()  # with the offset of each token

    def add(self, delta: TextDelta) -> None:
        """The tokens of a delta, before its text is parsed."""
        if (found := chat_logprobs(delta.logprobs)) is not None:
            offsets = self._offsets.of(delta.token_ids)
            self._waiting.extend(zip(offsets, found.content, strict=True))

    def of(self, text: ContentDelta) -> list[ChatLogprob]:
        """The tokens of a text. Each is returned once, with the first text that it is part of."""
        waiting, found = self._waiting, list[ChatLogprob]()
        while len(waiting) > 1 and waiting[0][0] < text.begin and waiting[1][0] <= text.begin:
            waiting.popleft()
        while waiting and waiting[0][0] < text.end:
            found.append(waiting.popleft()[1])
        return found
