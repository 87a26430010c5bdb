"""From a folder with a small model to answers, and the name of its weights."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, ConfigError, SamplingParams
from paceline.cli.main import main
from paceline.core.settings.load import LoadConfig
from paceline.core.system.host import EARLY, loaded_libraries
from paceline.engine.api import GenerationRequest
from paceline.hub.repository_files import silent
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.assembly import build
from paceline.wiring.fingerprint import SAMPLE_BYTES, SAMPLES, model_fingerprint, samples
from paceline.wiring.model import find_model
from paceline.wiring.model_files import load_tokenizer
from tests.golden.small_model import small_model
from tests.golden.support import is_greedy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), kv_cache_gib=0.01, max_num_seqs=4, weights="float32")


def test_the_log_names_each_stage_of_loading(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        LLM(str(folder), kv_cache_gib=0.01, weights="float32", device="cpu").close()
    messages = (record.getMessage() for record in caplog.records)
    stages = [one for one in messages if one.startswith(("loading", "KV"))]
    for at, begin in enumerate(("loading weights: ", "KV cache: ")):
        assert stages[at].startswith(begin)


def test_threads_of_a_torch_that_came_first_are_limited(folder: Path) -> None:
    EARLY.extend(loaded_libraries())
    LLM(str(folder), kv_cache_gib=0.01, device="cpu").close()
    assert EARLY == []


def test_the_tokens_are_those_of_transformers(llm: LLM, folder: Path) -> None:
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = ["the quick", "fox jumps over", "the cat sat on the mat and"]
    for output in llm.generate(prompts, params, progress=False):
        with torch.no_grad():
            found = output.outputs[0].token_ids
            assert is_greedy(theirs, output.prompt_token_ids, found, 12)


def test_quantised_weights_give_tokens_too(folder: Path) -> None:
    quantised = LLM(str(folder), kv_cache_gib=0.01, max_num_seqs=4, weights="int8")
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    together = quantised.generate(["the quick", "fox"], params, progress=False)
    (alone,) = quantised.generate(["fox"], params, progress=False)
    assert alone.outputs == together[1].outputs


def test_a_proposer_that_does_not_exist_is_refused_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.wiring.cpu.Model", None)
    with pytest.raises(ConfigError, match="no proposer 'nope': there are draft_model"):
        LLM(str(folder), num_speculative_tokens=2, proposer="nope")


def test_drafts_do_not_change_the_tokens(llm: LLM, folder: Path) -> None:
    drafting = {"num_speculative_tokens": 3, "prompt_lookup_min": 1, "speculation": "fixed"}
    other = LLM(str(folder), kv_cache_gib=0.01, max_num_seqs=4, weights="float32", **drafting)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompts = ["the quick the quick", "fox jumps over"]
    plainly, drafted = (one.generate(prompts, params, progress=False) for one in (llm, other))
    assert [one.outputs for one in drafted] == [one.outputs for one in plainly]


def test_steps_are_measured_where_there_are_drafts(folder: Path) -> None:
    small = {"kv_cache_gib": 0.01, "max_num_seqs": 4, "weights": "float32"}
    times = [
        build(str(folder), **small, **drafting).scheduler.state.speculation.times
        for drafting in ({}, {"num_speculative_tokens": 2})
    ]
    assert times[0] is None
    assert times[1] is not None
    assert [size for size, _ in times[1].plain] == [1, 2, 4]
    assert times[1].drafted


def test_choices_have_texts_of_their_own(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, temperature=1.0, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate(["the dog"], params, progress=False)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len({choice.token_ids for choice in output.outputs}) == 3
    (again,) = llm.generate(["the dog"], params, progress=False)
    assert again.outputs == output.outputs


def test_whoever_may_generate_most_goes_first(folder: Path) -> None:
    for policy, first in ((None, "long"), ("fcfs", "short")):
        given = {} if policy is None else {"policy": policy}
        llm = LLM(str(folder), kv_cache_gib=0.01, max_num_seqs=1, weights="float32", **given)
        for name, tokens in (("short", 2), ("long", 4)):
            params = SamplingParams(max_tokens=tokens, ignore_eos=True)
            llm.enqueue(GenerationRequest(prompt="fox", params=params, request_id=name))
        done: list[str] = []
        while len(done) < 2:
            done += [output.request_id for output in llm.step()]
        assert done[0] == first


def test_random_weights_have_the_words_that_lie_beside_them(folder: Path) -> None:
    beside = Tokenizer.load(folder).encode("the quick fox")
    assert load_tokenizer(str(folder), "dummy").encode("the quick fox") == beside


def test_words_are_found_from_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    ids = load_tokenizer(f"~/{folder.name}", "auto").encode("the quick fox")
    assert ids == Tokenizer.load(folder).encode("the quick fox")


def test_weights_of_another_form_than_asked_for_are_refused(folder: Path) -> None:
    assert find_model(str(folder), LoadConfig(load_format="safetensors"), "cpu", silent)
    with pytest.raises(ConfigError, match=r"load_format is 'gguf', but .* has another format"):
        find_model(str(folder), LoadConfig(load_format="gguf"), "cpu", silent)


def test_a_chat_template_replaces_the_one_of_the_model(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0].content }}!")
    assert load_tokenizer(str(folder), "auto", str(file)).chat_template == file.read_text()
    assert load_tokenizer("qwen3-0.6b", "dummy", "{{ 1 }}").chat_template == "{{ 1 }}"
    with LLM(str(folder), kv_cache_gib=0.01, chat_template=str(file)) as llm:
        (output,) = llm.chat([{"role": "user", "content": "fox"}], progress=False, max_tokens=1)
    assert output.prompt == "fox!"
    with pytest.raises(ConfigError, match="the chat template has an error in line 1"):
        LLM(str(folder), chat_template="{% if %}")


def test_a_conversation_is_answered(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    (output,) = llm.chat([{"role": "user", "content": "fox"}], params, progress=False)
    assert output.usage.completion_tokens == 4


def test_the_command_completes_a_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["complete", "the quick", "--model", str(folder), "--kv-cache-gib", "0.01"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip()


def test_a_model_that_is_not_there_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "x", "--model", "smollm3"]) == 2
    assert "smollm2" in capsys.readouterr().err


OWN = LoadConfig()


def name_of(folder: Path, own: LoadConfig = OWN, device: str = "cpu") -> str:
    return model_fingerprint(open_checkpoint(folder), device, own)


def test_a_copy_elsewhere_has_the_same_name(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert name_of(copy) == name_of(folder)


def test_other_weights_have_another_name(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "trained")
    (file,) = copy.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert name_of(copy) != name_of(folder)


def test_other_numbers_have_another_name(folder: Path) -> None:
    named = [
        name_of(folder, device="cuda"),
        name_of(folder, LoadConfig(dtype="float32")),
        name_of(folder, LoadConfig(weights="float32")),
        name_of(folder, LoadConfig(kv_cache_dtype="fp8")),
    ]
    assert len({name_of(folder), *named}) == 5


def test_a_shape_without_files_is_named_by_its_configuration(folder: Path) -> None:
    config = open_checkpoint(folder).config
    other = Dummy(replace(config, max_position=config.max_position + 1), device="cpu")
    names = [model_fingerprint(one, "cpu", OWN) for one in (Dummy(config, device="cpu"), other)]
    assert len({*names, name_of(folder)}) == 3


def test_samples_are_spread_over_the_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 64)
    assert b"".join(samples(file)) == file.read_bytes()
    with file.open("wb") as long:
        long.truncate(2 * SAMPLES * SAMPLE_BYTES)
    assert [len(one) for one in samples(file)] == [SAMPLE_BYTES] * SAMPLES


def test_the_system_is_named_by_all_that_changes_outputs(folder: Path, tmp_path: Path) -> None:
    def system(model: Path = folder, **settings: Any) -> str:
        cache = build(str(model), kv_cache_gib=0.01, **settings).scheduler.config.cache
        return cache.system_fingerprint

    copy = shutil.copytree(folder, tmp_path / "copy")
    same = system()
    assert same == system(copy, max_num_seqs=3, policy="fair")
    ways = [
        {"batch_invariant": True},
        {"weights": "int8"},
        {"chat_template": "chatml"},
        {"attention": "paged"},
    ]
    assert len({same, *(system(**way) for way in ways)}) == 5
