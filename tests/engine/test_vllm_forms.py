"""Scripts written for vLLM run: its methods, its modules, and what they read of outputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, EngineFailed, RequestError, SamplingParams
from paceline.engine.frontend.outputs import Alternative, TokenLogprob
from paceline.inputs import TextPrompt, TokensPrompt
from paceline.sampling_params import (
    BeamSearchParams,
    GuidedDecodingParams,
    PoolingParams,
    StructuredOutputsParams,
)
from tests.wiring.support import dummy_model

PLAIN = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = dummy_model(tmp_path_factory.mktemp("dummy"))
    with LLM(str(folder), device="cpu", load_format="dummy", kv_cache_gib=0.01) as found:
        yield found


def ids_of(llm: LLM, prompts: Any, params: SamplingParams = PLAIN, **given: Any) -> Any:
    outputs = llm.generate(prompts, params, use_tqdm=False, **given)
    return [list(one.outputs[0].token_ids) for one in outputs]


def test_prompts_in_the_forms_of_vllm(llm: LLM) -> None:
    (wanted,) = ids_of(llm, "hello")
    ids = llm.get_tokenizer().encode("hello")
    assert ids_of(llm, TextPrompt(prompt="hello")) == [wanted]
    assert ids_of(llm, [TokensPrompt(prompt_token_ids=ids)]) == [wanted]
    assert ids_of(llm, None, prompt_token_ids=[ids, ids]) == [wanted, wanted]
    assert ids_of(llm, ["hello"] * 2, priority=[1, 0]) == [wanted, wanted]
    with pytest.raises(RequestError, match="both given"):
        ids_of(llm, "hello", prompt_token_ids=ids)
    with pytest.raises(RequestError, match="there are no prompts"):
        ids_of(llm, None)
    with pytest.raises(RequestError, match="; give a list with one for each prompt"):
        ids_of(llm, ["hello"] * 2, priority=[1])


def test_log_probabilities_are_read_as_a_dict(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, temperature=0, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate("hello", params, use_tqdm=False)
    one = output.outputs[0]
    assert one.logprobs is not None
    for token, entry in zip(one.token_ids, one.logprobs, strict=True):
        assert (entry[token].rank, entry[token].logprob) == (1, entry.chosen.logprob)
        assert entry[token].decoded_token == entry.chosen.text
        assert [found.rank for found in entry.values()] == [1, 2, 3]
        assert list(entry) == [found.token_id for found in entry.top]
        assert -1 not in entry
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for token, entry in list(zip(output.prompt_token_ids, output.prompt_logprobs, strict=True))[1:]:
        assert entry is not None
        assert entry[token].rank == entry.rank
    named = SamplingParams(max_tokens=1, temperature=0, logprob_token_ids=[5, 6])
    (output,) = llm.generate("hello", named, use_tqdm=False)
    (entry,) = output.outputs[0].logprobs or ()
    assert {5, 6} <= set(entry)
    assert entry[5].rank is None


def test_the_dict_of_many_alternatives_is_made_once() -> None:
    top = tuple(Alternative(token, -float(token), "t", b"t") for token in range(20_000))
    entry = TokenLogprob(top[0], top)
    assert [one.rank for one in entry.values()] == list(range(1, 20_001))
    assert dict(entry.items())[7].logprob == -7.0


def test_an_output_has_metrics(llm: LLM) -> None:
    (output,) = llm.generate("hello", PLAIN, use_tqdm=False)
    found = output.metrics
    assert found is not None
    assert 0 <= found.scheduled_ts <= found.first_token_ts <= found.last_token_ts
    assert found.first_token_latency == found.first_token_ts > 0
    assert found.num_generation_tokens == 6
    (refused,) = llm.generate("", PLAIN, use_tqdm=False)
    assert refused.metrics is None


def test_tokens_without_text(llm: LLM) -> None:
    (wanted,) = llm.generate("hello", PLAIN, use_tqdm=False)
    (output,) = llm.generate("hello", PLAIN, detokenize=False, use_tqdm=False)
    assert output.outputs[0].text == ""
    assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
    with pytest.raises(RequestError, match="stop is for texts"):
        SamplingParams(detokenize=False, stop="a")


def test_the_params_truncate_prompts(llm: LLM) -> None:
    (output,) = llm.generate("hello there", PLAIN, truncate_prompt_tokens=4, use_tqdm=False)
    assert list(output.prompt_token_ids) == llm.get_tokenizer().encode("hello there")[-4:]
    (output,) = llm.generate("a" * 999, PLAIN, truncate_prompt_tokens=-1, use_tqdm=False)
    assert len(output.prompt_token_ids) == llm.max_model_len - 6


def test_logits_processors_choose_and_see_what_was_generated(llm: LLM) -> None:
    seen: list[list[int]] = []

    def only(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(token_ids)
        mask = torch.full_like(logits, -torch.inf)
        mask[100 + len(token_ids)] = 0.0
        return mask

    (plain,) = ids_of(llm, "hello")
    params = SamplingParams(max_tokens=5, ignore_eos=True, logits_processors=[only])
    mixed = llm.generate(["hello", "hello"], [params, PLAIN], use_tqdm=False)
    assert [list(one.outputs[0].token_ids) for one in mixed] == [[100, 101, 102, 103, 104], plain]
    assert seen == [[], [100], [100, 101], [100, 101, 102], [100, 101, 102, 103]]

    def wrong(token_ids: list[int], logits: torch.Tensor) -> Any:
        return 3

    (failed,) = llm.generate("hello", PLAIN, logits_processors=[wrong], use_tqdm=False)
    assert "a logits processor returned 3" in failed.error
    assert ids_of(llm, "hello") == [plain]
    with pytest.raises(RequestError, match="is no function"):
        SamplingParams(logits_processors=[3])  # type: ignore[list-item]


def test_logits_processors_see_drafts_that_were_right(tmp_path: Path) -> None:
    def counting(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        mask = torch.full_like(logits, -torch.inf)
        mask[100 + len(token_ids) % 3] = 0.0
        return mask

    small: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "kv_cache_gib": 0.01}
    folder = str(dummy_model(tmp_path))
    with LLM(folder, num_speculative_tokens=3, speculation="fixed", **small) as drafting:
        params = SamplingParams(max_tokens=24, ignore_eos=True, logits_processors=[counting])
        (found,) = ids_of(drafting, "hello", params)
        assert found == [100, 101, 102] * 8
        assert drafting.get_metrics().counters["spec_decode_num_accepted_tokens"] > 0


def test_beams_keep_their_stop_strings_if_that_is_asked_for() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=4, include_stop_str_in_output=True)
    assert params.sampling().include_stop_str_in_output


def test_beams_have_their_prompts(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)
    (output,) = llm.beam_search([{"prompt": "hello"}], params)
    ids = llm.get_tokenizer().encode("hello")
    assert len(output.sequences) == 3
    for one in output.sequences:
        assert one.tokens[: len(ids)] == ids
        assert len(one.tokens) == len(ids) + 4
        assert one.text.startswith("hello")
    first, *others = output.sequences
    assert all(first.cum_logprob >= one.cum_logprob for one in others)
    forced = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (scored,) = llm.generate([first.tokens], forced, use_tqdm=False)
    assert scored.prompt_logprobs is not None
    entries = scored.prompt_logprobs[len(ids) :]
    total = sum(one.chosen.logprob for one in entries if one is not None)
    assert first.cum_logprob == pytest.approx(total, abs=1e-3)


def test_a_model_sleeps_and_wakes(tmp_path: Path) -> None:
    small: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "kv_cache_gib": 0.01}
    with LLM(str(dummy_model(tmp_path)), **small) as own:
        wanted = ids_of(own, "hello")
        own.sleep(level=1)
        assert own.is_sleeping
        with pytest.raises(EngineFailed, match=r"asleep \(kv_cache, weights\); call wake_up"):
            ids_of(own, "hello")
        own.wake_up(tags=["weights"])
        own.wake_up()
        assert not own.is_sleeping
        assert ids_of(own, "hello") == wanted
        own.sleep(level=2)
        own.wake_up()
        with pytest.raises(EngineFailed, match="slept at level 2"):
            ids_of(own, "hello")
        own.update_weights()
        assert ids_of(own, "hello") == wanted


def test_the_engine_of_a_model_is_stepped(llm: LLM) -> None:
    engine = llm.llm_engine
    assert engine.model_config.max_model_len == llm.max_model_len
    assert engine.model_config.get_vocab_size() == 400
    engine.add_request("a", "hello", PLAIN)
    engine.add_request("b", {"prompt": "hello"}, PLAIN)
    engine.abort_request("b")
    assert engine.has_unfinished_requests()
    ended = {}
    while engine.has_unfinished_requests():
        ended |= {one.request_id: one for one in engine.step() if one.finished}
    assert [list(ended["a"].outputs[0].token_ids)] == ids_of(llm, "hello")
    assert engine.get_num_unfinished_requests() == 0


def test_texts_become_vectors(llm: LLM) -> None:
    (embedded,) = llm.embed("hello", progress=False)
    (encoded,) = llm.encode("hello", use_tqdm=False)
    (short,) = llm.encode("hello", PoolingParams(dimensions=2, normalize=False), use_tqdm=False)
    np.testing.assert_allclose(encoded.outputs.data, embedded.outputs.embedding, atol=1e-6)
    assert short.outputs.data.shape == (2,)
    for name in ("classify", "reward"):
        with pytest.raises(RequestError, match=f"{name} needs a model with classes"):
            getattr(llm, name)("hello")
    with pytest.raises(RequestError, match="pooling_task is 'token_embed'"):
        llm.encode("hello", pooling_task="token_embed")


def test_what_the_params_of_vllm_have() -> None:
    class Person:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"type": "object", "properties": {"name": {"type": "string"}}}

    wanted = SamplingParams(structured_outputs={"json": Person.model_json_schema()})
    assert SamplingParams(structured_outputs={"json": Person}) == wanted
    assert SamplingParams(structured_outputs=StructuredOutputsParams(json=Person)) == wanted  # type: ignore[arg-type]
    assert SamplingParams(guided_decoding=GuidedDecodingParams(json=Person)) == wanted
    with pytest.raises(RequestError, match="give one of them"):
        SamplingParams(guided_decoding={"json": {}}, structured_outputs={"json": {}})
    assert SamplingParams.from_optional(temperature=None, max_tokens=3) == SamplingParams(
        max_tokens=3
    )
    assert wanted.clone() == wanted
    with pytest.raises(RequestError, match="unknown argument 'temprature'; did you mean 'temperat"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="flat_logprobs is not supported: "):
        SamplingParams(flat_logprobs=True)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="spaces_between_special_tokens is False"):
        SamplingParams(spaces_between_special_tokens=False)
