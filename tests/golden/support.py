"""Small models that transformers makes, and their logits and tokens."""

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.runner.models.traits import find
from tests.conformance.architectures import Case, nested

# Architectures that transformers does not have, and one of its own that computes the same.
SAME = {"mimo": "qwen2"}


@cache
def model_class(architecture: str) -> Any:
    """The class of transformers for an architecture of ours, whatever its capitals are."""
    architecture = SAME.get(architecture, architecture)
    has_vision = find(architecture).vision is not None
    whole = f"{architecture}{'forconditionalgeneration' if has_vision else 'forcausallm'}"
    names = {name for name in transformers.__all__ if name.lower() == whole}
    assert len(names) == 1, f"transformers has no model to compare {architecture!r} with"
    return getattr(transformers, names.pop())


def known_of(case: Case, entries: dict[str, Any]) -> dict[str, Any]:
    """The entries that the configuration of transformers names for the architecture."""
    known = signature(model_class(case.architecture).config_class.__init__).parameters
    return {key: value for key, value in entries.items() if key in known}


def config_of(case: Case) -> Any:
    """The configuration of transformers."""
    if find(case.architecture).vision is not None:
        return image_config_of(case)
    sizes = {**case.sizes, **known_of(case, case.changes), **case.own_changes}
    # transformers would shorten the cache of a model without windows, too.
    if not known_of(case, {"sliding_window": 0}):
        del sizes["sliding_window"]
    kind = model_class(case.architecture).config_class
    sizes = deepcopy(sizes)  # it changes what it is given
    return kind(**sizes, pad_token_id=None, eos_token_id=None, attn_implementation="eager")


def image_config_of(case: Case) -> Any:
    """The configuration of a model with a vision tower."""
    entries = deepcopy(nested(case.architecture, {**case.sizes, **case.own_changes}))
    entries["text_config"] |= {"pad_token_id": None, "eos_token_id": None}
    kind = model_class(case.architecture).config_class
    return kind(**entries, attn_implementation="eager")


@cache
def is_known(case: Case) -> bool:
    """Whether transformers has such a model."""
    if case.variant != "plain" and not case.own_changes and not known_of(case, case.changes):
        return False
    try:
        config_of(case)
    except (StrictDataclassError, KeyError):  # a rope that it has not, for this architecture
        return False
    return True


def made(case: Case) -> Any:
    """A transformers model in which every number is random, norms and biases too."""
    model = model_class(case.architecture)(config_of(case)).eval().requires_grad_(False)
    seed = len(case.architecture) + len(case.variant)
    generator = torch.Generator().manual_seed(seed)
    centre = 1.0 - find(case.architecture).norm_offset
    for label, tensor in model.named_parameters():
        is_norm = label.endswith("norm.weight")
        spread = 0.3 if is_norm or label.endswith("bias") else tensor.shape[-1] ** -0.5
        tensor.normal_(centre if is_norm else 0.0, spread, generator=generator)
        if case.architecture == "gemma4" and label.endswith("q_norm.weight"):
            tensor.mul_(0.25)  # scores have no other scale
    for label, tensor in model.named_buffers():
        if label.endswith("correction_bias"):
            tensor.normal_(0.0, 0.3, generator=generator)
    for label, buffer in model.named_buffers():
        if label.endswith("layer_scalar"):
            buffer.fill_(0.8)
    return model


def saved(case: Case, folder: Path, **options: Any) -> Any:
    model = made(case)
    model.save_pretrained(folder, **options)
    if case.architecture == "kimilinear":
        rename_mlp(folder / "model.safetensors")
    return model


def rename_mlp(path: Path) -> None:
    """Published files have no MLP within `block_sparse_moe`, where transformers saves it."""
    wrong, right = re.compile(r"block_sparse_moe\.(?=\w+_proj)"), "mlp."
    save_file({wrong.sub(right, name): tensor for name, tensor in load_file(path).items()}, path)


def their_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    return model(torch.tensor([list(tokens)])).logits[0]  # [positions, vocab]


def is_greedy(model: Any, prompt: Sequence[int], found: Sequence[int], steps: int) -> bool:
    """Does a model of transformers continue a prompt with these tokens, in so many steps? One pass
    over all of them shows it: each is the likeliest one after the tokens before it."""
    assert len(found) == steps
    logits = their_logits(model, [*prompt, *found[:-1]])
    return logits[len(prompt) - 1 :].argmax(-1).tolist() == list(found)


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
