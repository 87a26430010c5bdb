"""Small models that transformers makes, and their logits and tokens."""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.conformance.architectures import VARIANTS, Case, traits_of

VARIANT_NAMES = list(VARIANTS)


@cache
def model_class(architecture: str) -> Any:
    """The class of transformers for an architecture of ours, whatever its capitals are."""
    names = [name for name in dir(transformers) if name.lower() == f"{architecture}forcausallm"]
    assert len(names) == 1, f"transformers has no model to compare {architecture!r} with"
    return getattr(transformers, names[0])


def known_of(case: Case, entries: dict[str, Any]) -> dict[str, Any]:
    """The entries that the configuration of transformers names for the architecture."""
    known = signature(model_class(case.architecture).config_class.__init__).parameters
    return {key: value for key, value in entries.items() if key in known}


def is_known(case: Case) -> bool:
    """Whether transformers has such a model."""
    if case.variant not in VARIANTS:
        return False
    return case.variant == "plain" or bool(known_of(case, case.changes))


def made(case: Case) -> Any:
    """A transformers model in which every number is random, norms and biases too."""
    kind = model_class(case.architecture)
    sizes = {**case.sizes, **known_of(case, case.changes)}
    # transformers would shorten the cache of a model without windows, too.
    if not known_of(case, {"sliding_window": 0}):
        del sizes["sliding_window"]
    config = kind.config_class(**sizes, attn_implementation="eager")
    model = kind(config).eval().requires_grad_(False)
    seed = len(case.architecture) + VARIANT_NAMES.index(case.variant)
    generator = torch.Generator().manual_seed(seed)
    centre = 1.0 - traits_of(case.architecture).norm_offset
    for label, tensor in model.named_parameters():
        is_norm = label.endswith("norm.weight")
        spread = 0.3 if is_norm or label.endswith("bias") else tensor.shape[-1] ** -0.5
        tensor.normal_(centre if is_norm else 0.0, spread, generator=generator)
    return model


def saved(case: Case, folder: Path, **options: Any) -> Any:
    model = made(case)
    model.save_pretrained(folder, **options)
    return model


def their_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    return model(torch.tensor([list(tokens)])).logits[0]  # [positions, vocab]


def their_greedy(model: Any, prompt: Sequence[int], steps: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(their_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
