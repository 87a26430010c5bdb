"""Weights that are quantized while they are loaded, as a user asks for it on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, ConfigError, SamplingParams
from paceline.cli.main import main
from paceline.runner.native.library import is_available
from tests.conformance.architectures import Case

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**Case("llama").entries, "vocab_size": 300},
    "gptoss": {**Case("gptoss").entries, "vocab_size": 300, "intermediate_size": 64},
}


def folder_of(path: Path, architecture: str, **changes: Any) -> str:
    (path / "config.json").write_text(json.dumps({**SHAPES[architecture], **changes}))
    return str(path)


def tokens(model: str, **settings: Any) -> tuple[int, ...]:
    with LLM(model, device="cpu", load_format="dummy", kv_cache_gib=0.01, **settings) as llm:
        (output,) = llm.generate("A prompt", SamplingParams(max_tokens=8, temperature=0))
    return output.outputs[0].token_ids


@pytest.mark.parametrize("architecture", SHAPES)
@pytest.mark.parametrize("quantization", ["fp8", "int8", "int4", "modelopt", "mxfp4"])
def test_kernels_for_integers_compute_quantized_weights(
    architecture: str, quantization: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = folder_of(tmp_path, architecture)
    if (architecture, quantization) == ("llama", "mxfp4"):
        with pytest.raises(ConfigError, match="'mxfp4', which is for experts, and the model has"):
            tokens(model, quantization=quantization)
        return
    caplog.set_level("INFO")
    assert len(tokens(model, quantization=quantization)) == 8
    assert f"loading weights: {'int8' if is_available() else 'float32'} (the" in caplog.text


def test_four_bits_have_other_tokens_and_the_same_each_time(tmp_path: Path) -> None:
    model = folder_of(tmp_path, "llama")
    plain, first, second = (tokens(model, quantization=one) for one in ("auto", "int4", "int4"))
    assert plain != first == second


def test_complete_takes_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--load-format", "dummy", "--device", "cpu", "--kv-cache-gib", "0.01"]
    command = ["complete", "A prompt", "--model", folder_of(tmp_path, "llama"), *flags]
    assert main([*command, "--max-tokens", "4", "--quantization", "int4"]) == 0
    capsys.readouterr()
    assert main([*command, "--quantization", "awq"]) != 0
    assert (
        "cannot be quantized to 'awq'; choose fp8, int4, int8, modelopt, mxfp4"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("quantization", ["awq", "int3", "mxfp4"])
def test_it_is_refused_before_weights_are_read(quantization: str, tmp_path: Path) -> None:
    """The file has none that could be read."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"{quantization}'"):
        LLM(folder_of(tmp_path, "llama"), device="cpu", quantization=quantization)


def test_dummy_weights_are_plain(tmp_path: Path) -> None:
    quantized = folder_of(tmp_path, "llama", quantization_config={"quant_method": "fp8"})
    with pytest.raises(ConfigError, match=r"draws plain weights, and .* has a quantization_config"):
        tokens(quantized)
