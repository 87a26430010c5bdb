"""A small model with random weights that can write any text, calls tools and reasons."""

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from tests.text.tool_templates import QWEN

SPECIAL = ["<s>", "<|im_end|>", "<|im_start|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
OPENED = """\
{%- if add_generation_prompt %}
    {{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
}


@cache
def thinking_tokenizer() -> Tokenizer:
    """A token for each byte, and the markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=0,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([], trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return tokenizer


def biases(text: str, bias: float) -> dict[str, float]:
    """A `logit_bias` for each token of a text."""
    return {str(id): bias for id in thinking_tokenizer().encode(text).ids}


def thinking_model(folder: Path) -> Path:
    """Load it with `load_format="dummy"`. The template opens the block of reasoning with
    `enable_thinking`, and closes it without."""
    tokenizer = thinking_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"eos_token": "<|im_end|>", "chat_template": QWEN + OPENED}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **SIZES,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
