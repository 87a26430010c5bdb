"""What a runner can do, and the measured times of its steps."""

from typing import Any

import numpy as np
import pytest

from paceline import ConfigError
from paceline.core.capabilities import Capabilities, Points, StepTimes
from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.multimodal import ImageInput
from paceline.core.request import Request
from paceline.core.sampling import Sampling

PROMPT = np.arange(4, dtype=np.int32)
NEEDS: dict[str, tuple[dict[str, Any], str]] = {
    "logprobs": ({"sampling": Sampling(logprobs=0)}, "logprobs is 0; .* remove `logprobs`"),
    "prompt_logprobs": (
        {"sampling": Sampling(prompt_logprobs=0)},
        "prompt_logprobs is 0; .* remove `prompt_logprobs`",
    ),
    "adapters": (
        {"adapter": "mine"},
        "'a' names adapter 'mine'; this engine runs no adapters: remove `adapter`",
    ),
    "images": (
        {"images": (ImageInput("cat", 0, 2),)},
        "'a' has 1 images; this engine reads text alone: remove `images`",
    ),
    "pooling": (
        {"pooling": "last", "max_tokens": 1},
        "'a' wants an embedding; this engine has none: remove `pooling`",
    ),
    "constraints": (
        {"constraint": Constraint.regex("a+")},
        r"'a' has a constraint \(regex\); .* remove `structured_outputs`",
    ),
}


@pytest.mark.parametrize("capability", list(NEEDS))
def test_what_is_needed_and_missing_is_refused(capability: str) -> None:
    fields, message = NEEDS[capability]
    request = Request(id="a", prompt=PROMPT, **fields)
    others = {name: name != capability for name in NEEDS}
    with pytest.raises(RequestError, match=message):
        Capabilities(**others).check(request)
    Capabilities(**{capability: True}).check(request)


def test_banned_words_need_masks() -> None:
    banned = Constraint.any_text().without(((1, 2),))
    request = Request(id="a", prompt=PROMPT, constraint=banned)
    with pytest.raises(RequestError, match=r"bad_words of request 'a' needs .* remove `bad_words`"):
        Capabilities().check(request)
    Capabilities(constraints=True).check(request)


def test_a_plain_request_needs_nothing() -> None:
    Capabilities().check(Request(id="a", prompt=PROMPT))


def test_an_engine_that_only_embeds_refuses_to_generate() -> None:
    embeds = Capabilities(pooling=True, generation=False)
    embeds.check(Request(id="a", prompt=PROMPT, max_tokens=1, pooling="last"))
    with pytest.raises(RequestError, match="'a' wants text; this model only makes embeddings"):
        embeds.check(Request(id="a", prompt=PROMPT))


POINTS: Points = ((1, 2.0), (3, 4.0), (7, 5.0))


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ((2, 1.0), (1, 2.0)),
        ((1, 1.0), (1, 2.0)),
        ((0, 1.0),),
        ((1, 0.0),),
        ((1, float("nan")),),
    ],
)
def test_points_that_make_no_sense_are_refused(wrong: Points) -> None:
    with pytest.raises(ConfigError, match="plain step times are"):
        StepTimes(wrong, POINTS)
    with pytest.raises(ConfigError, match="drafted step times are"):
        StepTimes(POINTS, wrong)
    if wrong:
        with pytest.raises(ConfigError, match="least step times are"):
            StepTimes(POINTS, POINTS, wrong)


def test_measured_times_are_in_the_order_of_positions() -> None:
    measured = StepTimes.measured({2: 1.5, 1: 1.0}, {4: 2.0}, {2: 1.75})
    assert measured == StepTimes(((1, 1.0), (2, 1.5)), ((4, 2.0),), ((2, 1.75),))
    assert StepTimes.measured({1: 1.0}, {}) is None
