"""Texts of models, and ways to feed them to parsers."""

import random
from collections.abc import Callable, Iterator

from paceline.tools.calls import CallDelta, Reply, ReplyDelta, ToolCall, joined
from paceline.tools.parser import OutputParser

Maker = Callable[[], OutputParser]

# JSON of arguments as models write it: nesting, braces and quotes in strings, several bytes a
# character, markers of the formats inside strings.
ARGUMENTS = (
    "{}",
    '{"q": 1}',
    '{"city": "Zürich 🌧️ 東京", "days": [1, 2, {"a": {"b": []}}]}',
    '{"code": "if (x) { y[\\"}\\"]; } // \\\\"}',
    '{"text": "\\u00e9 </tool_call> [TOOL_CALLS] <|python_tag|> ; {", "n": null}',
    '{\n  "deep": {"deeper": {"deepest": [[[{}]]]}},\n  "s": ""\n}',
)
TEXTS = ("", "Let me look.", "Größe {x} [1] < 2 </tool>\n", " \n", "🦊 <tool", "a;b, \\")


def call(name: str, arguments: str) -> ToolCall:
    return ToolCall("", name, arguments)


def without_ids(reply: Reply) -> Reply:
    calls = tuple(ToolCall("", each.name, each.arguments) for each in reply.calls)
    return Reply(reply.content, reply.reasoning, calls)


def parsed(make: Maker, text: str) -> Reply:
    return without_ids(make().whole(text))


def streamed(make: Maker, pieces: list[str]) -> Reply:
    """The reply from pieces; each delta is checked by itself."""
    parser = make()
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    check(deltas)
    assert parser.finish() == []
    return without_ids(joined(deltas))


def check(deltas: list[ReplyDelta]) -> None:
    """A call begins with its id and name, which come once; no delta is empty."""
    begun: set[int] = set()
    for delta in deltas:
        if not isinstance(delta, CallDelta):
            assert delta.text
        elif delta.index in begun:
            assert delta.id is None
            assert delta.name is None
            assert delta.arguments
        else:
            assert delta.id
            assert delta.name
            assert delta.index == len(begun)
            begun.add(delta.index)


def splits(text: str, seed: int, tries: int) -> Iterator[list[str]]:
    """The text in single characters, and in random pieces."""
    yield list(text)
    chance = random.Random(seed)
    for _ in range(tries):
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 8)))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def assert_splits_agree(make: Maker, text: str, *, seed: int = 0, tries: int = 4) -> Reply:
    expected = parsed(make, text)
    for pieces in splits(text, seed, tries):
        assert streamed(make, pieces) == expected, (text, pieces)
    return expected
