"""Errors tell whose fault it was, and callers can catch them by it."""

import pytest

import paceline
from paceline.core.errors import (
    ConfigError,
    PacelineError,
    QueueFull,
    RequestError,
    StepError,
    some,
)


@pytest.mark.parametrize("error", [ConfigError, RequestError, QueueFull, StepError])
def test_every_error_is_one_of_ours(error: type[Exception]) -> None:
    assert issubclass(error, PacelineError)
    assert getattr(paceline, error.__name__) is error


def test_bad_input_is_a_value_error_too() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RequestError, ValueError)
    assert not issubclass(StepError, ValueError)


def test_a_full_queue_is_a_refusal_that_can_be_told_apart() -> None:
    assert issubclass(QueueFull, RequestError)
    assert not issubclass(RequestError, QueueFull)


def test_the_faults_of_operator_client_and_device_are_never_confused() -> None:
    kinds = (ConfigError, RequestError, StepError)
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)


def test_a_few_names_stand_for_many() -> None:
    assert some("abc") == "a, b, c"
    assert some(map(str, range(1500)), 2) == "0, 1 and 1,498 more"
