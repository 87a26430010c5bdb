"""Tiny models that transformers makes, and their tokens by transformers and by us."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from paceline.runner.attention.backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from tests.runner.support import Blocks, Piece, batch_of

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": 101,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


@dataclass(frozen=True)
class Case:
    config: str
    model: str
    changes: dict[str, Any]


def case(traits: str, **changes: Any) -> Case:
    config = f"{traits}TextConfig" if traits == "Gemma3" else f"{traits}Config"
    return Case(config, f"{traits}ForCausalLM", changes)


CASES = {
    "llama": case("Llama"),
    "llama-llama3": case("Llama", rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama-linear": case("Llama", rope_parameters=LINEAR, num_key_value_heads=4, head_dim=8),
    "qwen2": case("Qwen2"),
    "qwen2-window": case("Qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": case("Qwen3", tie_word_embeddings=True),
    "gemma3": case("Gemma3", num_hidden_layers=8, sliding_window=7, query_pre_attn_scalar=20),
    "mistral": case("Mistral", sliding_window=9),
}


def made(name: str) -> Any:
    """A transformers model in which every number is random, norms and biases too."""
    wanted = CASES[name]
    config = getattr(transformers, wanted.config)(**{**SIZES, **wanted.changes})
    model = getattr(transformers, wanted.model)(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(len(name))
    for label, tensor in model.named_parameters():
        spread = 0.3 if label.endswith(("norm.weight", "bias")) else tensor.shape[-1] ** -0.5
        centre = 1.0 if label.endswith("norm.weight") and "gemma" not in name else 0.0
        tensor.normal_(centre, spread, generator=generator)
    return model


def saved(name: str, folder: Path, **options: Any) -> Any:
    model = made(name)
    model.save_pretrained(folder, **options)
    return model


def tokens_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SIZES["vocab_size"], (length,), generator=generator).tolist()


def their_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    return model(torch.tensor([tokens])).logits[0]  # [positions, vocab]


def their_greedy(model: Any, prompt: Sequence[int], steps: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(their_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


class Run:
    """Several sequences that one model computes, each as far as a step asks for."""

    def __init__(self, model: Model, attention: str, block_size: int = 4) -> None:
        self.model, self.attention, self.block_size = model, load(attention), block_size
        self.kv = KVStore(model.config, 96, block_size)
        self.free = Blocks(96, block_size)
        self.blocks: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def add(self, name: str, tokens: Sequence[int], room: int = 0) -> None:
        self.tokens[name], self.computed[name] = list(tokens), 0
        self.blocks[name] = self.free.take(len(tokens) + room)

    def step(self, **counts: int) -> dict[str, Tensor]:
        """Compute so many positions of each; the logits of all of them, by name."""
        pieces = []
        for name, count in counts.items():
            first = self.computed[name]
            tokens = self.tokens[name][first : first + count]
            assert len(tokens) == count, f"{name} has no {count} tokens left"
            pieces.append(Piece(tokens, first, self.blocks[name]))
            self.computed[name] += count
        batch = batch_of(pieces, self.block_size)
        batch.check(self.block_size, self.kv.blocks)
        hidden = self.model.forward(batch, self.kv, self.attention)
        logits = self.model.logits(hidden)
        return dict(zip(counts, logits.split([len(p.tokens) for p in pieces]), strict=True))

    def greedy(self, names: Sequence[str], steps: int) -> None:
        """Decode the sequences together; all that is known of them must be computed but one."""
        for _ in range(steps):
            for name, logits in self.step(**dict.fromkeys(names, 1)).items():
                self.tokens[name].append(int(logits[-1].argmax()))


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
