"""Where the output of a request of `LLM` goes."""

from paceline.core.errors import PacelineError
from paceline.engine.api import GenerationRequest, RequestOutput, TextDelta
from paceline.engine.prompt_batch import refusal


class OutputCollector:
    """Keeps the finished output of a request and ignores its deltas."""

    def __init__(self, generation: GenerationRequest, done: dict[str, RequestOutput]) -> None:
        self._generation, self._done = generation, done

    def put(self, delta: TextDelta) -> None:
        pass

    def close(self, output: RequestOutput) -> None:
        self._done[self._generation.request_id] = output

    def refuse(self, error: PacelineError) -> None:
        self._done[self._generation.request_id] = refusal(self._generation, error)
