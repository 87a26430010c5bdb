"""An engine and its front end, for tests that turn them by hand."""

from collections.abc import Sequence
from typing import Any

from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.components import EngineComponents
from paceline.engine.frontend.frontend import Frontend
from tests.engine.support import Ear, assert_nothing_left, components, expected, tokenizer

PROMPTS = ["the quick fox", "hello", "Straße 你好", "nothing everything thing", "a"]


class Harness:
    """An engine and its front end, turned by hand."""

    def __init__(self, made: EngineComponents) -> None:
        self.engine = made.engine()
        self.frontend: Frontend = made.frontend(self.engine)

    def begin(self, one: GenerationRequest) -> Ear:
        ear = Ear()
        self.engine.submit(self.frontend.begin(one, ear))
        return ear

    def turn(self) -> None:
        if (delivery := self.engine.turn()) is not None:
            for one in self.frontend.deliver(delivery):
                self.engine.abort(one.request_id, one.child)

    def run(self) -> None:
        for _ in range(3000):
            if self.engine.idle and self.engine.resting:
                assert not self.frontend.open
                assert_nothing_left(self.engine.scheduler)
                return
            self.turn()
        raise AssertionError("it does not come to an end")


def run(generations: Sequence[GenerationRequest], **settings: Any) -> list[Ear]:
    harness = Harness(components(**settings))
    ears = [harness.begin(one) for one in generations]
    harness.run()
    return ears


def text_of(ear: Ear, index: int = 0) -> str:
    assert ear.output is not None
    return ear.output.outputs[index].text


def stop_strings(text: str) -> list[str]:
    """Strings that occur in a text, of several lengths, so that they lie across tokens."""
    found = [text[at : at + length] for at in range(4, len(text) - 8, 3) for length in (1, 3, 8)]
    return [one for one in found if "\ufffd" not in one]


def one_of_three_stops() -> tuple[SamplingParams, str]:
    """Params, and a string that only the second choice of "hello" comes to."""
    params = SamplingParams(max_tokens=60, seed=2, n=3, ignore_eos=True)
    each = [expected("hello", params, seed=2 + index)[0] for index in range(3)]
    texts = [tokenizer().decode(ids) for ids in each]
    return params, next(one for one in stop_strings(texts[1]) if one not in texts[0] + texts[2])
