"""Defaults that come with a model, and limits of an engine."""

import pytest

from paceline.core.errors import ConfigError, RequestError
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.offline.offline import OfflineEngine
from paceline.engine.sampling_rules import NO_RULES, SamplingRules
from tests.engine.support import build

QWEN = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True, "eos_token_id": [1]}


def test_the_model_recommends_and_the_request_decides() -> None:
    rules = SamplingRules.of(QWEN, 20)
    assert rules.params() == SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
    assert rules.params(top_k=0, n=2) == SamplingParams(temperature=0.6, top_p=0.95, n=2)
    assert rules.summary == "temperature 0.6, top_p 0.95, top_k 20"
    assert NO_RULES.params() == SamplingParams()
    assert NO_RULES.summary == ""


@pytest.mark.parametrize(("wanted", "most"), [(None, 40), (50, 40), (30, 30), (0, 0)])
def test_a_model_may_limit_its_outputs(wanted: int | None, most: int) -> None:
    rules = SamplingRules.of({"max_new_tokens": 40}, 20)
    assert rules.params(max_tokens=wanted).max_tokens == most
    assert rules.params().max_tokens == 16
    assert rules.summary == "at most max_tokens 40"


def test_a_search_takes_no_defaults() -> None:
    given = {"use_beam_search": True, "beam_width": 2}
    assert SamplingRules.of(QWEN, 20).params(**given) == SamplingParams(**given)


def test_wrong_recommendations_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"temperature is -7; .* set generation_config to 'none'"):
        SamplingRules.of({"temperature": -7}, 20)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_alternatives_have_a_limit(name: str) -> None:
    for most, wanted in ((20, 20), (0, 0), (30, 25), (-1, 10**6)):
        SamplingRules(max_logprobs=most).check(SamplingParams(**{name: wanted}))
    with pytest.raises(RequestError, match=rf"^{name} is 21; it must lie in 0..20, which max_logp"):
        NO_RULES.check(SamplingParams(**{name: 21}))


def test_requests_of_a_script_without_parameters_have_those_of_the_model() -> None:
    rules = SamplingRules({"temperature": 0.0}, max_logprobs=30)
    with OfflineEngine("oracle", build, rules=rules) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0)
        prompt = "the quick"
        named = llm.generate([prompt], max_tokens=5, progress=False)[0].outputs[0].token_ids
        plain, asked, greedy, seeded = (
            llm.generate([given], params, progress=False)[0].outputs[0].token_ids
            for given, params in [
                (prompt, None),
                (GenerationRequest(prompt=prompt), None),
                (prompt, SamplingParams(temperature=0.0)),
                (prompt, SamplingParams(seed=5)),
            ]
        )
        assert plain == asked == greedy != seeded
        assert named == greedy[:5]
        (many,) = llm.generate([prompt], SamplingParams(logprobs=30, max_tokens=1), progress=False)
        assert many.outputs[0].logprobs is not None
        assert len(many.outputs[0].logprobs[0].top) == 30
        (refused,) = llm.generate([prompt], SamplingParams(logprobs=31), progress=False)
        assert refused.error.startswith("logprobs is 31")


def test_named_tokens_count_as_alternatives() -> None:
    NO_RULES.check(SamplingParams(logprob_token_ids=range(20)))
    with pytest.raises(RequestError, match="number of logprob_token_ids is 21; it must lie in"):
        NO_RULES.check(SamplingParams(logprob_token_ids=range(21)))
    assert SamplingParams(logprob_token_ids=[7, 5, 7], logprobs=9).logprobs == 2
    with pytest.raises(RequestError, match="logprob_token_ids is empty"):
        SamplingParams(logprob_token_ids=[])
