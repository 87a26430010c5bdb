"""What config.json says of an encoder."""

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.encoders.config import TextEncoderConfig


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaModel", "XLMRobertaModel"])
def test_relative_positions_are_refused(architecture: str) -> None:
    raw = {
        "architectures": [architecture],
        "max_position_embeddings": 32,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "vocab_size": 9,
    }
    assert TextEncoderConfig.of_hf(raw).max_tokens > 0
    with pytest.raises(ConfigError, match="only 'absolute' is supported"):
        TextEncoderConfig.of_hf({**raw, "position_embedding_type": "relative_key"})
