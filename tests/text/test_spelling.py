import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from paceline.core.errors import ConfigError
from paceline.text.spelling import ALPHABET, Spelling, spelling_of

MARKED = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def decoding(decoder: decoders.Decoder | None) -> Spelling:
    backend = Tokenizer(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    return spelling_of(backend)


@pytest.mark.parametrize(
    ("decoder", "spelling"),
    [
        (None, Spelling(spaced=True, strips_space=True)),
        (decoders.ByteLevel(), Spelling(byte_level=True)),
        (decoders.Sequence([decoders.ByteLevel()]), Spelling(byte_level=True)),
        (
            decoders.Sequence(MARKED),
            Spelling(byte_fallback=True, replacements=(("▁", " "),)),
        ),
        (
            decoders.Sequence([*MARKED, decoders.Strip(" ", 1, 0)]),
            Spelling(byte_fallback=True, replacements=(("▁", " "),), strips_space=True),
        ),
        (decoders.Metaspace(), Spelling(replacements=(("▁", " "),), strips_space=True)),
        (
            decoders.Metaspace(prepend_scheme="first"),
            Spelling(replacements=(("▁", " "),), strips_space=True),
        ),
        (decoders.Metaspace(prepend_scheme="never"), Spelling(replacements=(("▁", " "),))),
    ],
)
def test_decoders_are_read(decoder: decoders.Decoder, spelling: Spelling) -> None:
    assert decoding(decoder) == spelling


@pytest.mark.parametrize(
    ("decoder", "complaint"),
    [
        (decoders.Sequence([decoders.Fuse(), decoders.CTC()]), "CTC"),
        (decoders.Strip("_", 1, 0), "Strip"),
    ],
)
def test_decoders_that_do_not_join_plainly_are_refused(
    decoder: decoders.Decoder, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        decoding(decoder)


def test_the_alphabet_is_that_of_the_library() -> None:
    assert sorted(ALPHABET) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(ALPHABET.values()) == list(range(256))


@settings(deadline=None)
@given(st.text())
def test_byte_level_tokens_are_the_bytes_they_were_made_from(text: str) -> None:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    written = "".join(piece for piece, _ in cut.pre_tokenize_str(text))
    assert Spelling(byte_level=True).bytes_of(written, added=False) == text.encode()


def test_an_added_token_stands_for_its_own_text() -> None:
    spelling = Spelling(byte_level=True)
    assert spelling.bytes_of("<é>", added=True) == "<é>".encode()
    assert spelling.bytes_of("<é>", added=False) == b"<\xe9>"
    assert spelling.bytes_of("a b", added=False) == b"a b"  # no byte is written as a space


def test_byte_tokens_and_marks() -> None:
    spelling = Spelling(byte_fallback=True, replacements=(("▁", " "),))
    assert spelling.bytes_of("<0xE2>", added=False) == b"\xe2"
    assert spelling.bytes_of("<0xe2>", added=False) == b"\xe2"
    assert spelling.bytes_of("<0xE2F>", added=False) == b"<0xE2F>"
    assert spelling.bytes_of("<0x41>▁a", added=False) == b"<0x41> a"
    assert spelling.bytes_of("▁▁a", added=False) == b"  a"
    assert Spelling().bytes_of("<0xE2>", added=False) == b"<0xE2>"
