import codecs
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.core.errors import RequestError
from paceline.text.detokenizer import Detokenizer
from paceline.text.tokenizer import Tokenizer
from tests.text.support import byte_level, ours, sentence_piece_entries, write_gguf


def marked_tokenizer() -> Tokenizer:
    with TemporaryDirectory() as folder:
        file = write_gguf(Path(folder) / "s.gguf", "llama", **sentence_piece_entries())
        return Tokenizer.load(file)


BYTE_LEVEL, MARKED = ours(byte_level()), marked_tokenizer()
TOKENIZERS = {"byte level": BYTE_LEVEL, "marked": MARKED}
TEXTS = ["hello 😀 world", "the  the   猫猫", "e\u0301 ½", " a b", "<think>no", "ab" * 5, "👨‍👩‍👧"]


def cut(text: str, stop: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The text up to the stop string that ends first; the longest, if several do."""
    for end in range(1, len(text) + 1):
        for one in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(one):
                return text[: end if include else end - len(one)], one
    return text, None


@cache
def byte_tokens(tokenizer: Tokenizer) -> list[int]:
    """Ids that stand for a byte of a longer character."""
    wanted = {bytes([value]) for value in "é猫😀".encode()}
    return [id for id in range(tokenizer.vocab_size) if tokenizer.token_bytes(id) in wanted]


@st.composite
def streams(draw: st.DrawFn, tokenizer: Tokenizer) -> list[int]:
    """Ids of every kind, often real text, often its tokens in the wrong place."""
    text = st.sampled_from(TEXTS).map(lambda text: tokenizer.encode(text, special=False))
    single = st.integers(0, tokenizer.vocab_size + 2).map(lambda id: [id])
    special = st.sampled_from(sorted(tokenizer.special)).map(lambda id: [id])
    byte = st.sampled_from(byte_tokens(tokenizer)).map(lambda id: [id])
    parts = draw(st.lists(text | single | special | byte, max_size=12))
    return [id for part in parts for id in part]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tokenizer, list[int], list[int], list[str], list[int]]:
    tokenizer = draw(st.sampled_from([BYTE_LEVEL, MARKED]))
    ids = draw(streams(tokenizer))
    text = tokenizer.decode(ids)
    stop = draw(st.lists(st.text("abehlt 😀猫\ufffd", min_size=1, max_size=4), max_size=2))
    if text:
        begin = draw(st.integers(0, len(text) - 1))
        stop += draw(st.lists(st.just(text[begin : begin + 5]), max_size=1))
    cuts = draw(st.lists(st.integers(0, len(ids)), max_size=6))
    prompt = draw(st.just([]) | streams(tokenizer))
    return tokenizer, prompt, ids, stop, sorted({0, len(ids), *cuts})


def continued(tokenizer: Tokenizer, prompt: list[int], ids: list[int], skip: bool) -> str:
    """The decoding of everything, less the characters that the prompt completes."""
    table = tokenizer.spelled(skip)
    before, after = (b"".join(table[id] for id in part) for part in (prompt, ids))
    if tokenizer.strips_space:
        whole = (before + after).removeprefix(b" ")
        before = whole[: max(len(whole) - len(after), 0)]
        after = whole[len(before) :]
    shown = codecs.getincrementaldecoder("utf-8")("replace").decode(before)
    return (before + after).decode(errors="replace")[len(shown) :]


@settings(max_examples=100, deadline=None)
@given(cases(), st.booleans(), st.booleans())
@example((BYTE_LEVEL, [172], [], ["\ufffd"], [0]), False, True)  # half a character, and no more
def test_pieces_add_up_to_the_whole_cut_at_the_stop(
    case: tuple[Tokenizer, list[int], list[int], list[str], list[int]], include: bool, skip: bool
) -> None:
    tokenizer, prompt, ids, stop, cuts = case
    stream = Detokenizer(
        tokenizer, stop=stop, include_stop=include, skip_special=skip, prompt=prompt
    )
    pieces = [stream.push(ids[begin:end]) for begin, end in pairwise(cuts)]
    pieces.append(stream.finish())
    whole = continued(tokenizer, prompt, ids, skip) if ids else ""
    expected, stopped = cut(whole, stop, include)
    assert "".join(pieces) == expected
    assert stream.stopped == stopped
    if stopped is None:
        assert stream.tokens == len(ids)


def unfinished(spelled: bytes) -> str:
    """How half a character at the end is shown. Half of a surrogate is two bytes of which no
    character can come any more, but Python's decoder still waits for a third."""
    is_surrogate = spelled[-2:-1] == b"\xed" and spelled[-1] >= 0xA0
    return "\ufffd" * (1 + is_surrogate)


@settings(max_examples=60, deadline=None)
@given(cases())
@example((BYTE_LEVEL, [], [172, 105], [], [0, 2]))  # half of a surrogate
def test_nothing_is_withheld_without_a_reason(
    case: tuple[Tokenizer, list[int], list[int], list[str], list[int]],
) -> None:
    tokenizer, _, ids, stop, _ = case
    stream, given_so_far = Detokenizer(tokenizer, stop=stop), ""
    for count, id in enumerate(ids, 1):
        given_so_far += stream.push([id])
        if stream.stopped is not None:
            break
        whole = tokenizer.decode(ids[:count])
        missing = whole[len(given_so_far) :]
        half = unfinished(b"".join(map(tokenizer.spelled(True).__getitem__, ids[:count])))
        reasons = [missing, missing.removesuffix(half)]
        assert any(one.startswith(reason) for one in ("", *stop) for reason in reasons), whole


@settings(deadline=None)
@given(st.lists(st.integers(0, MARKED.vocab_size - 1)), st.booleans())
def test_the_whole_is_what_the_tokenizer_decodes(ids: list[int], skip: bool) -> None:
    for tokenizer in (BYTE_LEVEL, MARKED):
        stream = Detokenizer(tokenizer, skip_special=skip)
        assert stream.push(ids) + stream.finish() == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_an_emoji_comes_in_one_piece(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🦊b", special=False)
    stream = Detokenizer(tokenizer)
    pieces = [piece for piece in (stream.push([id]) for id in ids) if piece]
    assert len(ids) > len(pieces)
    assert "🦊" in pieces
    assert stream.finish() == ""


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_half_a_character_at_the_end_is_replaced_as_in_a_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a猫", special=False)[:-1]
    stream = Detokenizer(tokenizer)
    assert stream.push(ids) == "a"
    assert stream.finish() == "\ufffd"
    assert tokenizer.decode(ids) == "a\ufffd"
    assert stream.finish() == ""


def test_a_stop_string_is_found_across_tokens() -> None:
    ids = MARKED.encode("the thing and more", special=False)
    assert not any("thing" in MARKED.token(id) for id in ids)
    stream = Detokenizer(MARKED, stop=["thing"])
    assert "".join(stream.push([id]) for id in ids) == "the "
    assert stream.stopped == "thing"
    assert stream.tokens < len(ids)
    assert stream.push(ids) == stream.finish() == ""


def test_text_that_turns_out_to_begin_no_stop_string_is_sent() -> None:
    a, b = (BYTE_LEVEL.encode(text)[0] for text in "ab")
    stream = Detokenizer(BYTE_LEVEL, stop=["aab"])
    assert stream.push([a]) == ""
    assert stream.push([a]) == ""
    assert stream.push([a]) == "a"
    assert stream.push([b]) == ""
    assert stream.stopped == "aab"
    stream = Detokenizer(BYTE_LEVEL, stop=["aab"])
    assert stream.push([b, a, a]) == "b"
    assert stream.finish() == "aa"
    assert stream.finish() == ""
    assert stream.stopped is None


def test_the_stop_string_may_be_included() -> None:
    ids = BYTE_LEVEL.encode("hello world again")
    stream = Detokenizer(BYTE_LEVEL, stop=["world"], include_stop=True)
    assert stream.push(ids) + stream.finish() == "hello world"


def test_a_replacement_at_the_end_may_complete_a_stop_string() -> None:
    ids = BYTE_LEVEL.encode("a猫")[:-1]
    stream = Detokenizer(BYTE_LEVEL, stop=["\ufffd"])
    assert stream.push(ids) + stream.finish() == "a"
    assert stream.stopped == "\ufffd"


def test_stop_strings_wait_for_the_least_number_of_tokens() -> None:
    a, b = (BYTE_LEVEL.encode(text)[0] for text in "ab")
    stream = Detokenizer(BYTE_LEVEL, stop=["ab"], min_tokens=2)
    assert stream.push([a, b]) == "ab"
    assert stream.push([b, a, b]) == "b"
    assert (stream.stopped, stream.tokens) == ("ab", 5)


def test_half_a_character_behind_a_stop_string_is_no_part_of_the_text() -> None:
    ids = range(BYTE_LEVEL.vocab_size)
    both = next(id for id in ids if BYTE_LEVEL.token_bytes(id) == b"a\xc3")
    stream = Detokenizer(BYTE_LEVEL, stop=["a"])
    assert stream.push([both]) + stream.finish() == ""


def test_the_last_of_the_least_number_of_tokens_stops_nothing() -> None:
    a, b = (BYTE_LEVEL.encode(text)[0] for text in "ab")
    stream = Detokenizer(BYTE_LEVEL, stop=["b"], min_tokens=2)
    assert stream.push([a, b]) == "ab"
    assert stream.push([a, b]) == "a"
    assert (stream.stopped, stream.tokens) == ("b", 4)


def test_a_hidden_token_does_not_begin_the_text() -> None:
    word = MARKED.encode("the", special=False)
    stream = Detokenizer(MARKED)
    assert stream.push([1, *word]) + stream.finish() == "the"


def test_a_space_is_stripped_only_where_the_text_begins() -> None:
    word = MARKED.encode("the", special=False)
    assert MARKED.token(word[0]).startswith(" ")
    prompt = MARKED.encode("a", special=False)
    for before, text in (([], "the"), ([1], "the"), (prompt, " the"), ([1, *prompt], " the")):
        stream = Detokenizer(MARKED, prompt=np.array(before, np.int32))
        assert stream.push(word) + stream.finish() == text
    stream = Detokenizer(MARKED, prompt=[1], skip_special=False)
    assert stream.push(word) == " the"


def test_a_character_begun_by_the_prompt_is_completed() -> None:
    cat = BYTE_LEVEL.encode("猫")
    assert len(cat) > 1
    stream = Detokenizer(BYTE_LEVEL, prompt=BYTE_LEVEL.encode("see ") + cat[:1])
    assert stream.push(cat[1:]) + stream.finish() == "猫"


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_as_much_of_a_character_as_the_prompt_begins_is_completed(begun: int) -> None:
    single = {BYTE_LEVEL.token_bytes(id): id for id in range(BYTE_LEVEL.vocab_size)}
    face = [single[bytes([value])] for value in "😀".encode()]
    stream = Detokenizer(BYTE_LEVEL, prompt=BYTE_LEVEL.encode("see ") + face[:begun])
    assert stream.push(face[begun:]) + stream.finish() == "😀"


def test_special_tokens_are_shown_on_request() -> None:
    ids = [*BYTE_LEVEL.encode("a"), 2, *BYTE_LEVEL.encode("b")]
    for skip, text in ((True, "ab"), (False, "a<end>b")):
        assert Detokenizer(BYTE_LEVEL, skip_special=skip).push(ids) == text


def test_the_cost_of_a_token_does_not_grow_with_the_output() -> None:
    class Counting(dict[int, bytes]):
        asked = 0

        def __getitem__(self, id: int) -> bytes:
            self.asked += 1
            return b"\xf0\x9f"  # never a whole character

    stream = Detokenizer(BYTE_LEVEL, stop=["\ufffd" * 50 + "x"])
    counting = Counting()
    stream._bytes = counting  # type: ignore[assignment]
    for _ in range(5000):
        stream.push([0])
        assert len(stream._withheld) <= 50  # type: ignore[reportPrivateUsage]
    assert counting.asked == 5000


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        Detokenizer(BYTE_LEVEL, stop=[""])
