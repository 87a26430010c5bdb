from collections.abc import Sequence

from paceline.kv.hit import MOST_QUESTIONS, Offers


def test_a_connector_is_asked_a_few_times_and_then_only_the_device() -> None:
    asked: list[list[bytes]] = []

    def offer(keys: Sequence[bytes], have: int) -> int:
        asked.append(list(keys))
        return 0

    offers = Offers(offer, {b"here"}.__contains__)
    for _ in range(3 * MOST_QUESTIONS):
        assert offers.first_absent([b"here", b"there"]) == 1
    assert asked == [[b"there"]] * MOST_QUESTIONS
    assert offers.first_absent([b"here"]) is None
    assert not offers.must_ask_later
