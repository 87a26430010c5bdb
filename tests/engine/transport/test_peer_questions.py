"""Questions that one front end asks all others."""

from typing import Any

from paceline.engine.transport.front_end_link import PeerAnswer, PeerQuestion, PeerQuestions
from paceline.engine.transport.wire import NumberedAnswer


class SentMessages:
    """The messages to a front end whose process is not needed here."""

    is_ready = True

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_the_answer_has_those_of_all_that_have_not_left() -> None:
    asker, *others = (SentMessages(number) for number in range(4))
    questions = PeerQuestions()
    questions.relay(asker, PeerQuestion(7, "abort", ("a", "b")), others)  # type: ignore[arg-type]
    numbers = [one.sent[0].number for one in others]
    assert [one.sent for one in others] == [[PeerQuestion(numbers[0], "abort", ("a", "b"))]] * 3
    for one, answer in ((others[0], ["a"]), (others[2], [])):
        questions.answered(one, PeerAnswer(numbers[0], answer))  # type: ignore[arg-type]
        assert not asker.sent
    questions.left(others[1])  # type: ignore[arg-type]
    assert asker.sent == [NumberedAnswer(7, [["a"], []])]
    questions.answered(others[1], PeerAnswer(numbers[0], ["b"]))  # type: ignore[arg-type]
    assert len(asker.sent) == 1


def test_a_front_end_without_others_is_answered_at_once() -> None:
    asker = SentMessages(0)
    PeerQuestions().relay(asker, PeerQuestion(3, "parts", ("a",)), [])  # type: ignore[arg-type]
    assert asker.sent == [NumberedAnswer(3, [])]
