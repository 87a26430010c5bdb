"""Errors, with one class for each cause."""

from collections.abc import Iterable
from difflib import get_close_matches


class PacelineError(Exception):
    """The base class of all errors of paceline."""


class ConfigError(PacelineError, ValueError):
    """A setting is unknown, malformed or contradicts another one."""


class PluginError(PacelineError):
    """A policy, a limit, a gate, a discipline or a proposer gave an answer that breaks its
    contract."""


class RequestError(PacelineError, ValueError):
    """A request is malformed or can never run."""


class PromptTooLong(RequestError):
    """There is no room for a token after the prompt."""


class QueueFull(RequestError):
    """The queue is full or closed; the client may try again later."""


class WeightsLost(RequestError):
    """An update of the weights failed after it had begun: the model has none any more."""


class GrammarTooCostly(RequestError):
    """A grammar takes more time, memory or work per token than its limits allow."""


class RequestFailed(PacelineError):
    """A request was refused, or ended with an error or a timeout; see `LLM.generate`."""


class StepError(PacelineError):
    """The result of a step does not match its plan."""


class DeviceLost(StepError):
    """The device can compute nothing more for this process."""


TOO_LATE = "the server cannot produce the first token in time; retry later"  # under policy slo


def some(names: Iterable[str], most: int = 3) -> str:
    """A few names for a sentence, and how many more there are."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the known name that is most like it."""
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else otherwise
