"""Names of tokens in `logprobs` of completions."""

from paceline.engine.api import Alternative, TokenLogprob
from paceline.server.schemas.completions import IMPOSSIBLE, TokenSpeller


def alternative(token_id: int, logprob: float, spelled: bytes) -> Alternative:
    return Alternative(token_id, logprob, spelled.decode(errors="replace"), spelled)


def test_parts_of_characters_are_told_apart() -> None:
    halves = alternative(1, -1.0, b"\xe2\x82"), alternative(2, -2.0, b"\xf0\x9f")
    tops = TokenSpeller().tops(TokenLogprob(halves[0], halves), 2)
    assert tops == {"bytes:\\xe2\\x82": -1.0, "bytes:\\xf0\\x9f": -2.0}


def test_the_token_itself_stands_beside_the_likeliest() -> None:
    top = tuple(alternative(id, -id, b"%d" % id) for id in (1, 2))
    chosen = alternative(9, float("-inf"), b"9")
    tops = TokenSpeller().tops(TokenLogprob(chosen, top), 2)
    assert list(tops.items()) == [("9", IMPOSSIBLE), ("1", -1), ("2", -2)]
    assert TokenSpeller().tops(TokenLogprob(chosen, top), 0) == {"9": IMPOSSIBLE}
    assert "token_id:9" in TokenSpeller(as_ids=True).tops(TokenLogprob(chosen, top), 1)


def test_of_tokens_with_the_same_text_the_likeliest_counts_but_never_against_the_token() -> None:
    top = (alternative(1, -1.0, b"a"), alternative(2, -2.0, b"b"), alternative(3, -3.0, b"b"))
    chosen = alternative(4, -5.0, b"a")
    assert TokenSpeller().tops(TokenLogprob(chosen, top), 3) == {"b": -2.0, "a": -5.0}
