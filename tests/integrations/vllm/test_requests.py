"""What clients say for our policies, and why a request stopped."""

from paceline.integrations.vllm.settings import hints


def test_hints_for_policies_are_taken_from_extra_args() -> None:
    given = {"tenant": "team-7", "deadline": 2.0, "token_deadline": 0.5, "other": 1}
    assert hints(given) == {"tenant": "team-7", "deadline": 2.0, "token_deadline": 0.5}


def test_without_extra_args_there_are_no_hints() -> None:
    assert hints(None) == hints({}) == {}
