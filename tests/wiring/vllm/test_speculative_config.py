"""vLLM's `speculative_config`: its names become our settings, and what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.llm import LLM
from paceline.wiring.settings import sort_settings
from paceline.wiring.vllm.configs import spelled_out
from tests.wiring.support import dummy_model

LOOKUP = {"method": "ngram", "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (LOOKUP, {"proposer": "ngram", "num_speculative_tokens": 4}),
        (
            {**LOOKUP, "prompt_lookup_max": 3},
            {"prompt_lookup_min": 2, "prompt_lookup_max": 3},
        ),
        ({**LOOKUP, "prompt_lookup_max": 1}, {"prompt_lookup_min": 1, "prompt_lookup_max": 1}),
        ({**LOOKUP, "prompt_lookup_min": 7}, {"prompt_lookup_min": 7, "prompt_lookup_max": 7}),
        ({"method": "suffix"}, {"proposer": "suffix", "num_speculative_tokens": 24}),
        (
            {"method": "suffix", "suffix_decoding_max_tree_depth": 8},
            {"suffix_decoding_max_tree_depth": 8, "num_speculative_tokens": 8},
        ),
        (
            {"method": "suffix", "num_speculative_tokens": 5},
            {"num_speculative_tokens": 5},
        ),
        (
            {"model": "small", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
            {"proposer": "draft_model", "speculative_model": "small"},
        ),
        (
            {"method": "eagle3", "model": "heads", "num_speculative_tokens": 2},
            {"proposer": "eagle3", "speculative_model": "heads"},
        ),
        ({**LOOKUP, "model": None}, {"proposer": "ngram"}),
    ],
)
def test_names_of_vllm_are_settings(given: dict[str, Any], settings: dict[str, Any]) -> None:
    for form in (given, json.dumps(given)):
        found = spelled_out({"speculative_config": form, "block_size": 8})
        assert settings.items() <= found.items()
        assert found["block_size"] == 8
        scheduler, load = sort_settings({"speculative_config": form})
        assert settings.items() <= scheduler.items()
        assert json.loads(load.speculative_config) == given


def test_without_it_nothing_changes() -> None:
    assert spelled_out({"block_size": 8}) == {"block_size": 8}
    for none in (None, ""):
        assert spelled_out({"block_size": 8, "speculative_config": none}) == {"block_size": 8}


def test_the_same_value_may_be_given_twice() -> None:
    both = {"speculative_config": LOOKUP, "num_speculative_tokens": 4}
    assert spelled_out(both)["num_speculative_tokens"] == 4


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{method", r"speculative_config is '{method', which is no JSON: "),
        ([4], r"speculative_config is \[4\]; it must be a mapping, such as"),
        ({"num_speculative_tokens": 4}, "neither a method nor a model"),
        ({"method": "ngram"}, "has no num_speculative_tokens; set it to 1 or more"),
        ({**LOOKUP, "prompt_lookup_maxx": 3}, "'prompt_lookup_maxx'; did you mean 'prompt_lookup_"),
        ({**LOOKUP, "zebra": 3}, "unknown name 'zebra'; it may have method, model, num_spec"),
        ({**LOOKUP, "disable_by_batch_size": 3}, "use speculation_max_batch_tokens"),
        ({**LOOKUP, "draft_tensor_parallel_size": 2}, "is 2; only 1 is supported"),
    ],
)
def test_what_is_wrong_is_named(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        spelled_out({"speculative_config": given})


def test_a_value_of_the_wrong_type_is_named() -> None:
    scheduler, _ = sort_settings({"speculative_config": {**LOOKUP, "prompt_lookup_max": "4"}})
    with pytest.raises(ConfigError, match="prompt_lookup_max is '4'; it must be of type int"):
        Config.of(**scheduler)


def test_two_different_values_are_an_error() -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens is 2, and 4 in speculative_co"):
        spelled_out({"speculative_config": LOOKUP, "num_speculative_tokens": 2})


def test_an_engine_drafts_as_it_says_and_counts_drafts_as_vllm_does(tmp_path: Path) -> None:
    prompts = ["to be or not to be", "to be or not"]
    outputs: list[Any] = []
    for given in (None, LOOKUP, {"method": "suffix", "num_speculative_tokens": 4}):
        settings = {"speculative_config": given, "speculation": "fixed"} if given else {}
        settings |= {"load_format": "dummy", "device": "cpu", "max_num_seqs": 2}
        with LLM(str(dummy_model(tmp_path)), **settings) as llm:
            found = [
                llm.generate(prompts, temperature=heat, seed=1, max_tokens=24, progress=False)
                for heat in (0.0, 0.7, 0.7)
            ]
            outputs.append([[one.outputs[0].token_ids for one in each] for each in found])
            report = llm.get_metrics()
        counters = report.counters
        drafted = counters["spec_decode_num_draft_tokens"]
        accepted = counters["spec_decode_num_accepted_tokens"]
        assert (drafted > 0) == (counters["spec_decode_num_drafts"] > 0) == (given is not None)
        assert accepted == sum(report.accepted_at) <= drafted
    assert outputs[0] == outputs[1] == outputs[2]
