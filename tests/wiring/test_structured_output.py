"""Structured output of a real, tiny model: every text follows its constraint."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from paceline.core.errors import RequestFailed
from paceline.engine.api import RequestOutput, SamplingParams
from paceline.engine.grammar.slot_grammars import SlotGrammars
from paceline.llm import LLM
from tests.wiring.support import dummy_model

SCHEMA = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"},
        "kind": {"enum": ["cat", "dog"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["on", "kind", "size"],
    "additionalProperties": False,
}
END = "</s>"
DOCUMENT = {"json": SCHEMA, "disable_any_whitespace": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are bytes, and an end token."""
    found = dummy_model(tmp_path_factory.mktemp("model"))
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    backend = Backend(models.BPE({word: id for id, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    backend.save(str(found / "tokenizer.json"))
    (found / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return found


WAYS: dict[str, dict[str, Any]] = {
    "depth 1": {"depth": 1},
    "depth 2": {"depth": 2},
    "drafts, depth 2": {"depth": 2, "num_speculative_tokens": 3, "speculation": "fixed"},
}


@pytest.fixture(scope="module", params=WAYS)
def llm(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    settings: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01}
    with LLM(str(folder), max_num_seqs=4, **settings, **WAYS[request.param]) as one:
        yield one


def params(constraint: Any, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100, "structured_outputs": constraint, **fields})


def outputs(llm: LLM, *asked: SamplingParams) -> list[RequestOutput]:
    return llm.generate(
        [f"prompt {number}" for number in range(len(asked))], list(asked), progress=False
    )


def test_documents_are_valid_beside_other_requests(llm: LLM) -> None:
    asked = [params(DOCUMENT, seed=seed, temperature=2.0) for seed in range(6)]
    free = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
    alone = outputs(llm, free)[0].outputs[0].token_ids
    found = outputs(llm, free, *asked)
    assert found[0].outputs[0].token_ids == alone
    for one in found[1:]:
        jsonschema.validate(json.loads(one.outputs[0].text), SCHEMA)
        assert one.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-f]+"}, "[0-9]{3}-[a-f]+"),
        ({"choice": ["yes", "no", "perhaps"]}, "yes|no|perhaps"),
        ({"grammar": 'root ::= "a" root "b" | "c"'}, "a*cb*"),
    ],
)
def test_a_text_follows_its_constraint(llm: LLM, constraint: Any, pattern: str) -> None:
    asked = [params(constraint, seed=seed) for seed in range(4)] + [params(constraint, n=3)]
    for one in outputs(llm, *asked):
        for choice in one.outputs:
            whole = choice.finish_reason == "stop"
            assert not whole or re.fullmatch(pattern, choice.text)


def test_banned_words_are_never_written(llm: LLM) -> None:
    free = SamplingParams(max_tokens=60, seed=2, allowed_token_ids=range(64, 70))
    text = outputs(llm, free)[0].outputs[0].text
    words = [text[:2], text[7:10], text[20]]
    banned = replace(free, bad_words=words)
    found = outputs(llm, free, banned, replace(banned, ignore_eos=True, min_tokens=60))
    assert found[0].outputs[0].text == text
    for one in found[1:]:
        assert len(one.outputs[0].token_ids) == 60
        assert not any(word in one.outputs[0].text for word in words)


def test_banned_words_and_a_grammar_hold_together(llm: LLM) -> None:
    asked = [params({"regex": "(ab|ba)+"}, seed=seed, bad_words=["aa"]) for seed in range(4)]
    for one in outputs(llm, *asked):
        assert re.fullmatch("(ab|ba)*[ab]?", one.outputs[0].text)
        assert "aa" not in one.outputs[0].text


def test_every_sample_of_a_request_follows_it(llm: LLM) -> None:
    asked = params({"choice": ["yes", "no"]}, n=4, seed=3), params({"regex": "(ab)+"}, best_of=3)
    several, best = outputs(llm, *asked)
    assert {choice.text for choice in several.outputs} <= {"yes", "no"}
    assert re.fullmatch("(ab)*a?", best.outputs[0].text)


def test_every_beam_follows_it(llm: LLM) -> None:
    few = params({"choice": ["yes", "no", "nobody"]}, n=3, beam_width=3)
    many = params(DOCUMENT, n=2, beam_width=3)
    first, second = outputs(llm, few, many)
    assert {choice.text for choice in first.outputs} == {"yes", "no", "nobody"}
    for choice in second.outputs:
        jsonschema.validate(json.loads(choice.text), SCHEMA)


def test_other_settings_apply_within_the_constraint(llm: LLM) -> None:
    long = params({"regex": "[0-9]*"}, min_tokens=5, max_tokens=8)
    endless = params({"regex": "[0-9]{4}"}, ignore_eos=True)
    early = params({"choice": ["yes"]}, min_tokens=50)
    stopped = params({"regex": "aaaabaaaa"}, stop="b")
    scored = params({"regex": "[0-9]"}, logprobs=20)
    found = [one.outputs[0] for one in outputs(llm, long, endless, early, stopped, scored)]
    assert 5 <= len(found[0].text) <= 8
    assert (len(found[1].text), found[1].finish_reason) == (4, "stop")
    assert (found[2].text, found[2].finish_reason) == ("yes", "stop")
    assert (found[3].text, found[3].finish_reason) == ("aaaa", "stop")
    assert found[4].logprobs is not None
    assert {one.text for one in found[4].logprobs[0].top} <= {*"0123456789"}


def test_forced_tokens_change_no_output(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that wants log-probabilities samples all of its tokens."""
    jumps: list[int] = []

    def jump(self: SlotGrammars, slot: int, token: int | None) -> list[int]:
        found = real(self, slot, token)
        jumps.append(len(found))
        return found

    real = SlotGrammars.jump
    monkeypatch.setattr(SlotGrammars, "jump", jump)
    some: list[dict[str, Any]] = [{"seed": seed, "temperature": 2.0} for seed in range(3)]
    others: list[dict[str, Any]] = [
        {"max_tokens": 9},
        {"stop": "ind"},
        {"n": 2},
        {"min_tokens": 40},
    ]
    some += [{"seed": 5, **fields} for fields in others]
    asked = [params(DOCUMENT, **fields) for fields in some]
    found = outputs(llm, *asked)
    assert max(jumps) > 5
    jumps.clear()
    sampled = outputs(llm, *(params(DOCUMENT, **fields, logprobs=0) for fields in some))
    assert not jumps
    for one, other in zip(found, sampled, strict=True):
        for choice, same in zip(one.outputs, other.outputs, strict=True):
            assert (choice.token_ids, choice.text) == (same.token_ids, same.text)
            assert choice.finish_reason == same.finish_reason


@pytest.mark.parametrize(
    ("constraint", "problem"),
    [
        ({"regex": "("}, "regex"),
        ({"json": {"type": "unknown"}}, "unknown"),
        ({"grammar": "r"}, "grammar"),
    ],
)
def test_what_does_not_compile_is_refused_alone(llm: LLM, constraint: Any, problem: str) -> None:
    with pytest.raises(RequestFailed, match=problem):
        llm.generate("a", params(constraint), raise_on_error=True)
    assert outputs(llm, params({"choice": ["yes"]}))[0].outputs[0].text == "yes"
