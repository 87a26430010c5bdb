import json
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.wiring.model_files import check_config, download
from tests.hub.support import Hub, configured, serving

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


def files(config: dict[str, object]) -> dict[str, bytes]:
    content = json.dumps(config).encode()
    return {"config.json": content, "tokenizer.json": b"{}", "model.safetensors": b"w" * 1000}


def test_a_model_that_can_be_run_is_downloaded(tmp_path: Path) -> None:
    with serving(Hub(files=files(LLAMA))) as hub, configured(hub, tmp_path):
        folder = download("owner/small")
    assert (folder / "model.safetensors").read_bytes() == b"w" * 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["BertModel"]},
        {"architectures": ["ModernBertForSequenceClassification"]},
        {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True},
        {"architectures": ["Qwen3Model"]},
        {"architectures": ["Qwen3ForSequenceClassification"]},
    ],
)
def test_models_that_embed_or_score_are_downloaded(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    content = files({**LLAMA, "sliding_window": 8, **changes})
    with serving(Hub(files=content)) as hub, configured(hub, tmp_path):
        folder = download("owner/small")
    assert (folder / "model.safetensors").is_file()


def test_weights_of_an_architecture_that_cannot_be_run_are_not_downloaded(tmp_path: Path) -> None:
    strange = {**LLAMA, "architectures": ["MambaForCausalLM"]}
    with serving(Hub(files=files(strange))) as hub, configured(hub, tmp_path):
        with pytest.raises(ConfigError, match="architecture 'MambaForCausalLM' is not supported"):
            download("owner/small")
        assert hub.fetched() == ["config.json"]


@pytest.mark.parametrize(("content", "complaint"), [("{", "not complete"), ("[]", "JSON object")])
def test_a_config_that_is_not_an_object_is_refused(
    tmp_path: Path, content: str, complaint: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        check_config(file)
