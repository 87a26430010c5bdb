import pytest
from tokenizers import Tokenizer, models

from paceline.core.errors import ConfigError
from paceline.text.vocabulary import backend_of, frame

# Texts that would mean something else in a template of the library.
TOKENS = {"a": 0, "<$A:1>": 1, "an end": 2}


@pytest.mark.parametrize(
    ("before", "after", "ids"),
    [(None, None, [0]), (1, None, [1, 0]), (None, 2, [0, 2]), (1, 2, [1, 0, 2]), (0, 0, [0, 0, 0])],
)
def test_a_frame_is_put_around_a_text(
    before: int | None, after: int | None, ids: list[int]
) -> None:
    backend = Tokenizer(models.BPE(vocab=TOKENS, merges=[]))
    frame(backend, before, after)
    assert backend.encode("a").ids == ids
    assert backend.encode("a", add_special_tokens=False).ids == [0]


def test_a_document_that_describes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"somewhere\.json is not a valid tokenizer"):
        backend_of("{}", "somewhere.json")
    backend = Tokenizer(models.BPE(vocab=TOKENS, merges=[]))
    assert backend_of(backend.to_str(), "it").get_vocab() == TOKENS
