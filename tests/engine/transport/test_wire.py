"""The border between processes: what goes in comes out the same."""

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, PacelineError, QueueFull, RequestError
from paceline.core.events import Timings
from paceline.core.multimodal import ImageContent, ImageInput
from paceline.core.plan import Candidates, Choice, Ended
from paceline.core.pooling import PromptScores
from paceline.core.request import Finish, Request
from paceline.core.sampling import Sampling
from paceline.engine.loop.messages import Delivery, EngineFailed, Question, Refused
from paceline.engine.transport import wire


def sent(message: Any) -> Any:
    decoder = wire.from_core if isinstance(message, wire.FromCore) else wire.to_core
    return decoder.decode(wire.encoder.encode(message))


@pytest.mark.parametrize(
    "request_",
    [
        Request(id="a", prompt=[1, 2, 3]),  # pyright: ignore[reportArgumentType]
        Request(id="a", prompt=[1], n=2, generated=((5, 6), None)),  # pyright: ignore[reportArgumentType]
        Request(id="a", prompt=[1], priority=0.5, max_tokens=np.int64(4)),  # type: ignore[arg-type]
        Request(id="a", prompt=[1], arrival=3, deadline=2, length_penalty=1),  # pyright: ignore[reportArgumentType]
        Request(
            id="b",
            prompt=[7],  # pyright: ignore[reportArgumentType]
            max_tokens=5,
            min_tokens=2,
            ignore_eos=True,
            eos_token_ids=(1, 2),
            stop_token_ids=(3,),
            seed=2**62,
            priority=-3,
            arrival=1.5,
            tenant="t",
            deadline=2.0,
            token_deadline=0.5,
            cache_salt="s",
            adapter="mine",
            drafts=3,
            images=(ImageInput("cat", 0, 1),),
            n=2,
            best_of=3,
            length_penalty=0.5,
            early_stopping="never",
            constraint=Constraint.json(True, any_whitespace=False),
            kv_transfer_params={"do_remote_prefill": True, "remote_block_ids": [3, 1]},
            sampling=Sampling(
                temperature=0.3,
                logit_bias={3: 1.0, 9: -2.0},
                allowed_token_ids=(3, 4),
                bad_token_ids=(5,),
                logprobs=2,
                prompt_logprobs=3,
            ),
        ),
    ],
)
def test_a_request(request_: Request) -> None:
    back = sent(wire.EncodedRequest.of(request_)).request()
    assert back.prompt.tolist() == request_.prompt.tolist()
    for one in fields(Request):
        if one.name != "prompt":
            assert getattr(back, one.name) == getattr(request_, one.name)
    replace(back)  # what was restored without checks passes them


def test_the_content_of_images() -> None:
    pixels = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    image = ImageInput("cat", 0, 1, ImageContent.of("image", {"pixels": pixels}))
    request = Request(id="b", prompt=[7], images=(image,))  # pyright: ignore[reportArgumentType]
    back = sent(wire.EncodedRequest.of(request)).request()
    content = back.images[0].content
    assert content is not None
    assert content == image.content
    assert content["pixels"].tolist() == pixels.tolist()


def test_what_was_restored_cannot_be_changed() -> None:
    request = Request(id="b", prompt=[7], sampling=Sampling(logit_bias={3: 1.0}))  # pyright: ignore[reportArgumentType]
    back = sent(wire.EncodedRequest.of(request)).request()
    assert not back.prompt.flags.writeable
    with pytest.raises(TypeError):
        back.sampling.logit_bias[3] = 2.0  # type: ignore[index]


def prompt_scores(alternatives: int) -> PromptScores:
    rows = np.arange(3, dtype=np.int32)
    table = np.arange(3 * alternatives, dtype=np.int32).reshape(3, alternatives)
    values = table.astype(np.float32)
    return PromptScores("a", 2**40, 5, rows.astype(np.float32), rows, table, values)


def test_a_delivery() -> None:
    choice = Choice((1, 2), Finish.STOP, -0.5, 2)
    times = Timings(1, 2, 3, 6, 1)
    kept = {"do_remote_prefill": True, "remote_host": "h", "remote_block_ids": [3, 1]}
    gone = Ended("a", Finish.STOP, 2, "", -1, (choice,), 0, times, 4, kept)
    found = Candidates(np.array([[1, 2, 3], [4, 5, -1]], np.int32), np.ones((2, 3), np.float32))
    one = Delivery(
        1.5,
        np.array([7, 2**50], np.int64),
        np.array([[5, 6], [7, -1]], np.int32),
        np.array([2, 1], np.int32),
        np.array([[-0.5, -0.25], [-2.0, 0.0]], np.float32),
        found,
        (gone, Ended("b", Finish.ERROR, message="broken", child=1)),
        (Refused("c", QueueFull("full")),),
        tuple(prompt_scores(alternatives) for alternatives in (0, 2)),
    )
    back = wire.decode_delivery(sent(wire.encode_delivery(one)))
    assert back.time == one.time
    assert back.ended == one.ended
    for name in ("handle", "ids", "count", "logprob"):
        np.testing.assert_array_equal(getattr(back, name), getattr(one, name))
    assert back.candidates is not None
    np.testing.assert_array_equal(back.candidates.ids, found.ids)
    np.testing.assert_array_equal(back.candidates.logprob, found.logprob)
    for ours, theirs in zip(back.prompt, one.prompt, strict=True):
        for field in fields(PromptScores):
            left, right = getattr(ours, field.name), getattr(theirs, field.name)
            np.testing.assert_array_equal(left, right, strict=isinstance(right, np.ndarray))
    (refused,) = back.refused
    assert (refused.request_id, type(refused.error), str(refused.error)) == ("c", QueueFull, "full")


def test_a_delivery_of_nothing() -> None:
    empty = np.empty(0, np.int32)
    one = Delivery(0.0, empty.astype(np.int64), np.empty((0, 1), np.int32), empty)
    back = wire.decode_delivery(sent(wire.encode_delivery(one)))
    assert back.ids.shape == (0, 1)
    assert (len(back.count), back.logprob, back.candidates) == (0, None, None)


@pytest.mark.parametrize("kind", [ConfigError, EngineFailed, QueueFull, RequestError])
def test_an_error_keeps_its_kind(kind: type[PacelineError]) -> None:
    error = wire.EncodedError.of(kind("why")).error()
    assert (type(error), str(error)) == (kind, "why")


def test_an_unknown_error_is_the_engines_fault() -> None:
    error = wire.EncodedError.of(ZeroDivisionError("by zero")).error()
    assert isinstance(error, EngineFailed)
    assert "by zero" in str(error)


def test_plain_answers_of_numpy_numbers() -> None:
    answer = sent(wire.NumberedAnswer(3, {"a": np.int64(5), "b": [np.float32(0.5)], "c": {1: "x"}}))
    assert answer.value == {"a": 5, "b": [0.5], "c": {1: "x"}}


def test_nonsense_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.to_core.decode(wire.encoder.encode(["NumberedQuestion", 1, {"verb": "rm -rf"}]))
    assert sent(wire.NumberedQuestion(1, Question("explain", "a"))).question.argument == "a"
