"""Where tokens begin in the text of a completion, whatever they are made of."""

from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from paceline.server.replies.event_stream import TokenOffsets, echoed_offsets
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary
from tests.engine.support import tokenizer
from tests.server.conftest import Play
from tests.server.support import Site

PATH = "/v1/completions"
BOS, EOS = 0, 1
BYTES = {tokenizer().token_bytes(id): id for id in reversed(range(tokenizer().vocab_size))}


def single(text: bytes) -> list[int]:
    """A token for each byte."""
    return [BYTES[text[at : at + 1]] for at in range(len(text))]


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        (single("a😀b".encode()), [0, 1, 1, 1, 1, 2]),
        (single("😀é".encode()), [0, 0, 0, 0, 1, 1]),
        (single(b"a\xf0\x9fb"), [0, 1, 1, 2]),  # the half is a character by itself
        (single(b"\xf0\xe2\x82\xac"), [0, 1, 1, 1]),
        (single(b"\xff\xffa"), [0, 1, 2]),
        ([BOS, *single(b"a"), EOS, *single(b"b")], [0, 0, 1, 1]),
        ([*single(b"\xf0\x9f"), EOS, *single(b"\x98\x80a")], [0, 0, 0, 0, 0, 1]),
    ],
)
def test_a_token_begins_where_its_first_character_does(ids: list[int], wanted: list[int]) -> None:
    assert TokenOffsets(tokenizer(), skip_special=True).of(ids) == wanted
    one_by_one = TokenOffsets(tokenizer(), skip_special=True)
    assert [at for id in ids for at in one_by_one.of([id])] == wanted


def test_special_tokens_count_where_they_are_told() -> None:
    shown = TokenOffsets(tokenizer(), skip_special=False)
    assert shown.of([BOS, *single(b"a"), EOS, *single(b"b")]) == [0, 3, 4, 8]


def test_a_character_may_begin_in_the_prompt() -> None:
    tail = single("😀".encode())
    assert TokenOffsets(tokenizer(), True, tail[:2], 7).of([*tail[2:], *single(b"a")]) == [7, 7, 8]


def framed() -> Tokenizer:
    """One that puts a token before a text and one behind it."""
    words = {word: id for id, word in enumerate(["<s>", "</s>", "a", "b", "x"])}
    backend = Backend(models.BPE(words, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(word, special=True) for word in ("<s>", "</s>")])
    frame = [("<s>", BOS), ("</s>", EOS)]
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, frame)
    return Tokenizer(Vocabulary(backend, BOS, (EOS,), None))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ab", [0, 0, 1, 2]),
        ("<s>a<s>", [0, 0, 3, 4, 7]),
        ("", [0, 0]),
    ],
)
def test_what_frames_a_prompt_is_no_part_of_its_text(text: str, wanted: list[int]) -> None:
    one = framed()
    ids = one.encode(text)
    assert len(ids) == len(wanted)
    assert echoed_offsets(one, ids, text, given=True) == wanted


def columns(events: list[Any]) -> tuple[str, list[str], list[int]]:
    """Text, tokens and offsets, whole or joined."""
    choices = [event["choices"][0] for event in events]
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return (
        "".join(choice["text"] for choice in choices),
        [token for one in told for token in one["tokens"]],
        [at for one in told for at in one["text_offset"]],
    )


def test_an_echo_of_parts_of_characters_and_of_special_tokens(on: Play) -> None:
    async def scenario(site: Site) -> None:
        ids = [BOS, *single("a😀b".encode()), EOS, *single(b"c")]
        asked = {"max_tokens": 0, "echo": True, "logprobs": 0}
        whole = (await site.post(PATH, prompt=ids, **asked)).json()
        text, _, offsets = columns([whole])
        assert (text, offsets) == ("<s>a😀b</s>c", [0, 3, 4, 4, 4, 4, 5, 6, 10])
        given = (await site.post(PATH, prompt="c</s>c", **asked)).json()
        text, _, offsets = columns([given])
        assert (text, offsets) == ("c</s>c", [0, 1, 5])

    on(scenario)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_a_text_goes_on_with_the_token_at_its_offset(on: Play, echo: bool, skip: bool) -> None:
    special = {tokenizer().token(id) for id in tokenizer().special}

    def check(prompt: int, text: str, tokens: list[str], offsets: list[int]) -> int:
        """How many tokens are looked at."""
        assert offsets == sorted(offsets)
        hidden = [token in special and skip and at >= prompt for at, token in enumerate(tokens)]
        seen = [
            (token, at)
            for token, at, gone in zip(tokens, offsets, hidden, strict=True)
            if not gone and not token.startswith("bytes:")
        ]
        assert [token for token, at in seen if not text.startswith(token, at)] == []
        return len(seen)

    async def scenario(site: Site) -> None:
        checked = 0
        for seed in range(0, 8, 2):
            ids = [BOS, *tokenizer().encode("naïve 😀")[: 3 + seed]]
            asked = {"prompt": ids, "max_tokens": 60, "seed": seed, "ignore_eos": True}
            more = {"logprobs": 0, "echo": echo, "skip_special_tokens": skip}
            whole = columns([(await site.post(PATH, **asked, **more)).json()])
            streamed = columns(await site.events(PATH, **asked, **more))
            # Prompts are scored under a salt, by which the model without weights goes too.
            assert echo or whole == streamed
            checked += sum(check(len(ids) if echo else 0, *one) for one in (whole, streamed))
        assert checked > 100

    on(scenario)
