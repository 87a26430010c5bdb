from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.text.stop_strings import stop_strings

SHORT = st.text("ab🙂", min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(SHORT, max_size=5), st.text("ab🙂c", max_size=30))
def test_the_ending_is_the_longest_that_begins_a_stop_string(stop: list[str], text: str) -> None:
    ending = stop_strings(tuple(stop))
    for end in range(1, len(text) + 1):
        ending = ending.after(text[end - 1])
        suffixes = [text[begin:end] for begin in range(end)]
        begun = [s for s in suffixes if any(one.startswith(s) for one in stop)]
        assert ending.depth == max(map(len, begun), default=0)
        assert ending.found == max((len(s) for s in suffixes if s in stop), default=0)


def test_a_shorter_ending_is_known_before_the_longer_one_that_falls_back_to_it() -> None:
    ending = stop_strings(("baq", "abacd"))
    for character in "abacq":
        ending = ending.after(character)
    assert (ending.depth, ending.found) == (0, 0)


def test_nothing_is_withheld_without_stop_strings() -> None:
    assert stop_strings(()).after("a") is not None
    assert stop_strings(()).after("a").depth == 0
