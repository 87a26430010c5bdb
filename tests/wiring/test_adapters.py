"""Adapters from files to text: at start, loaded and unloaded, through `LLM`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from paceline import LLM, LoRARequest
from paceline.core.errors import ConfigError, RequestError
from paceline.engine.api import GenerationRequest
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.files import open_checkpoint
from tests.golden.small_model import small_model
from tests.runner.adapters.support import Merged, write_adapter

PROMPTS = ["the quick brown fox", "the lazy dog", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def config(model: Path) -> ModelConfig:
    return open_checkpoint(model).config


@pytest.fixture(scope="module")
def adapters(config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / name, config, seed, r=4 * seed)
        for seed, name in enumerate("xyz", 1)
    }


def merged_texts(model: Path, adapter: Path, folder: Path) -> list[str]:
    """What the model with merged weights says."""
    merged = Merged(open_checkpoint(model), adapter)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    kept = load_file(model / "model.safetensors")
    save_file({name: merged.read(name) for name in kept}, folder / "model.safetensors")
    return texts(str(folder))


def texts(model: str) -> list[str]:
    with LLM(model, max_model_len=64) as llm:
        found = llm.generate(PROMPTS, max_tokens=12, temperature=0, progress=False)
        return [one.outputs[0].text for one in found]


@pytest.fixture(scope="module")
def expected(
    model: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    found = {
        name: merged_texts(model, path, tmp_path_factory.mktemp(name))
        for name, path in adapters.items()
    }
    return found | {"": texts(str(model))}


@pytest.fixture(scope="module")
def llm(model: Path, adapters: dict[str, Path]) -> Iterator[LLM]:
    given = (f"x={adapters['x']}", f'{{"name": "y", "path": "{adapters["y"]}"}}')
    settings = {"enable_lora": True, "lora_modules": given, "max_loras": 2, "max_lora_rank": 12}
    with LLM(str(model), max_model_len=64, **settings) as found:
        yield found


def said(llm: LLM, *names: str) -> list[list[str]]:
    """All prompts with each of the adapters, in one batch."""
    asked = [GenerationRequest(prompt=one, adapter=name) for name in names for one in PROMPTS]
    found = llm.generate(asked, max_tokens=12, temperature=0, progress=False)
    plain = [one.error or one.outputs[0].text for one in found]
    size = len(PROMPTS)
    return [plain[at : at + size] for at in range(0, len(plain), size)]


def test_a_mixed_batch_says_what_merged_models_say(
    llm: LLM, expected: dict[str, list[str]]
) -> None:
    assert said(llm, "x", "", "y", "x") == [expected[name] for name in ("x", "", "y", "x")]
    assert len({tuple(one) for one in expected.values()}) == 4


def test_an_adapter_comes_with_a_request(
    llm: LLM, adapters: dict[str, Path], expected: dict[str, list[str]]
) -> None:
    """The third of two that host memory holds: the others are read again."""
    z = LoRARequest("z", 1, str(adapters["z"]))
    found = llm.generate(
        PROMPTS, max_tokens=12, temperature=0, progress=False, lora_request=[z, None, z]
    )
    got = [one.outputs[0].text for one in found]
    assert got == [expected["z"][0], expected[""][1], expected["z"][2]]
    assert said(llm, "y", "x", "z", "y") == [expected[name] for name in "yxzy"]
    llm.unload_adapter("z")
    assert "the adapter 'z' is not loaded; loaded adapters: x, y" in said(llm, "z")[0][0]


def test_other_weights_under_the_same_name_find_no_old_prefix(
    llm: LLM, config: ModelConfig, expected: dict[str, list[str]], tmp_path: Path
) -> None:
    path = write_adapter(tmp_path / "new", config, 1, r=4)
    changing = LoRARequest("changing", 1, str(path))
    llm.load_adapter(changing)
    assert said(llm, "changing", "changing") == [expected["x"]] * 2
    llm.unload_adapter("changing")
    write_adapter(path, config, 2, r=8)
    llm.load_adapter(changing)
    assert said(llm, "changing") == [expected["y"]]
    llm.unload_adapter("changing")


def test_files_that_change_are_noticed(llm: LLM, config: ModelConfig, tmp_path: Path) -> None:
    path = write_adapter(tmp_path, config, 3)
    llm.load_adapter(LoRARequest("brief", 1, str(path)))
    said(llm, "x", "y")  # drops it from host memory
    write_adapter(path, config, 4)
    assert "the files of the adapter have changed; load it again" in said(llm, "brief")[0][0]
    llm.unload_adapter("brief")


def test_adapters_that_cannot_be_loaded(llm: LLM, config: ModelConfig, tmp_path: Path) -> None:
    large = write_adapter(tmp_path, config, r=16)
    with pytest.raises(RequestError, match=r"the rank of .* is 16; max_lora_rank is 12"):
        llm.load_adapter(LoRARequest("large", 1, str(large)))
    with pytest.raises(RequestError, match="'x' is loaded already"):
        llm.load_adapter(LoRARequest("x", 1, str(large)))
    with pytest.raises(RequestError, match="the adapter 'none' is not loaded"):
        llm.unload_adapter("none")
    with pytest.raises(RequestError, match="there are 1 prompts and 2 lora_requests"):
        llm.generate("a", lora_request=[None, None], progress=False)
    with pytest.raises(RequestError, match="lora_request is 1; give a LoRARequest"):
        llm.generate("a", lora_request=1, progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"lora_modules": ("x=y",)}, "which need enable_lora"),
        ({"enable_lora": True, "lora_modules": ("x",)}, "'x' names no adapter; write NAME=PATH"),
        ({"enable_lora": True, "lora_modules": ("x=a", "x=b")}, "names 'x' twice"),
        ({"enable_lora": True, "lora_modules": ("x=nowhere",)}, "lora_modules: nowhere is no"),
        ({"enable_lora": True, "max_loras": 4, "max_cpu_loras": 2}, "max_cpu_loras is 2; at least"),
        ({"enable_lora": True, "max_lora_rank": 1000}, "max_lora_rank is 1000; at most 512"),
    ],
    ids=str,
)
def test_settings(model: Path, settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        LLM(str(model), max_model_len=64, **settings)


def test_an_engine_without_adapters_refuses_them(model: Path) -> None:
    with LLM(str(model), max_model_len=64) as llm:
        assert "runs no adapters" in said(llm, "x")[0][0]
        with pytest.raises(RequestError, match="start it with enable_lora"):
            llm.load_adapter(LoRARequest("x", 1, "somewhere"))
