"""A whole model in a folder, small enough to be made for a test."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.conformance.architectures import SIZES, Case
from tests.golden.support import saved

LLAMA = Case("llama")
CHAT = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}"
TEXT = "the quick brown fox jumps over the lazy dog and the cat sat on the mat"


def small_model(folder: Path, case: Case = LLAMA) -> Path:
    """A model with random weights, and a tokenizer trained on one sentence."""
    saved(case, folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZES["vocab_size"], special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder
