"""What can go wrong, by whose fault it is."""


class PacelineError(Exception):
    """The root of every error that paceline raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """The operator's fault: a setting that is unknown, malformed or contradictory."""


class PluginError(PacelineError):
    """The operator's fault: a policy, a limit, a gate, a discipline or a proposer gave an answer
    that breaks its contract."""


class RequestError(PacelineError, ValueError):
    """The client's fault: a request that is malformed or can never run."""


class PromptTooLong(RequestError):
    """The client's fault: no token has room after the prompt."""


class QueueFull(RequestError):
    """The client came at a bad time: the queue is bounded and full, or closed."""


class RequestFailed(PacelineError):
    """A request was refused, or ended with an error or a timeout; see `LLM.generate`."""


class StepError(PacelineError):
    """The runner's fault: a result that does not belong to the plan it answers."""


class DeviceLost(StepError):
    """The device's fault: it will compute nothing more for this process."""
