"""Log-probabilities of messages, beside reasoning and calls, whatever the text is split into."""

import random

import pytest

from paceline.engine.api import Alternative, TextDelta, TokenLogprob
from paceline.server.replies.event_stream import MessageLogprobs, TokenOffsets
from paceline.server.replies.reply_parsing import ReplyFormats, ReplyReader
from paceline.text.detokenizer import Detokenizer
from paceline.text.tokenizer import Tokenizer
from paceline.tools.calls import ContentDelta
from tests.engine.support import tokenizer
from tests.server.sample_replies import CALLS, HERMES, TEXT, TOOLS

END = 1  # the token that ends a text


def deltas(text: str, words: Tokenizer, chance: random.Random) -> list[TextDelta]:
    """The text as a model would write it, several tokens at a time."""
    found: list[TextDelta] = []
    ids, reader = words.encode(text, special=False), Detokenizer(words, skip_special=True)
    ids.append(END)
    while ids:
        some = tuple(ids[: chance.randint(1, 9)])
        del ids[: len(some)]
        bytes = [words.token_bytes(id) for id in some]
        scores = tuple(
            TokenLogprob(Alternative(id, -0.5, "", one), ())
            for id, one in zip(some, bytes, strict=True)
        )
        reason = None if ids else "stop"
        found.append(TextDelta(0, reader.push(some), some, scores, reason))
    return found


@pytest.mark.parametrize("before", ["", "<think>\nDo I?\n</think>\n\n"])
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (f"Grüß dich 🌧️!\n{CALLS}\n and\n more", "Grüß dich 🌧️! and\n more"),
        ("a <tool_call> b", "a <tool_call> b"),
        (CALLS, ""),
        ("a", "a"),
        (TEXT.partition("</think>\n\n")[2], "Let me look."),
    ],
)
def test_the_tokens_of_a_message_spell_its_text(before: str, text: str, tokens: str) -> None:
    words = tokenizer()
    formats = ReplyFormats.of(HERMES, words)
    for seed in range(8):
        reply = formats.asked(TOOLS, None, None)
        reader = ReplyReader(reply, ())
        scores = MessageLogprobs(TokenOffsets(words, skip_special=True))
        spelled, written = b"", ""
        for delta in deltas(before + text, words, random.Random(seed)):
            scores.add(delta)
            for one in reader.read(delta):
                if isinstance(one, ContentDelta):
                    written += one.text
                    spelled += b"".join(bytes(entry.bytes) for entry in scores.of(one))
        assert written.split() == tokens.split()
        assert spelled.decode().split() == tokens.split()
