"""A scheduler and a runner for an encoder, which embeds or scores texts and generates nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.core.settings.load import LoadConfig
from paceline.hub.repository_files import Progress
from paceline.runner.encoders.config import TextEncoderConfig, encoder_config
from paceline.runner.encoders.model import EncoderRunner, TextEncoder
from paceline.runner.weights.safetensors import files_in
from paceline.sched.scheduler import Scheduler
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model_files import download
from paceline.wiring.settings import slots_within

BLOCK = 16  # positions; blocks are only counted, there is no KV memory behind them
DEFAULTS: dict[str, Any] = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "slots_for_others": 8,
}
SEPARATOR = "[SEP]"  # between two texts, for BERT
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def encoder_folder(model: str, load_config: LoadConfig, progress: Progress) -> Path | None:
    """The folder of an encoder; None if the model is another one."""
    if load_config.load_format == "dummy":
        return None
    path = Path(download(model, progress))
    return path if path.is_dir() and encoder_config(path) is not None else None


def assemble(
    folder: Path,
    settings: dict[str, Any],
    load_config: LoadConfig,
    device: str,
    tokenizer: Tokenizer,
    scheduler_of: Callable[[Config], Scheduler] = Scheduler,
) -> tuple[Scheduler, EncoderRunner]:
    config = encoder_config(folder)
    assert config is not None
    dtype = DTYPES[device] if load_config.dtype == "auto" else getattr(torch, load_config.dtype)
    tensors = {name: one for file in files_in(folder) for name, one in load_file(file).items()}
    model = TextEncoder(config, tensors, dtype, device)
    if load_config.threads:
        torch.set_num_threads(load_config.threads)
    separator = next((id for id in tokenizer.special if tokenizer.token(id) == SEPARATOR), None)
    scheduler = scheduler_of(Config.of(**completed(settings, config)))
    return scheduler, EncoderRunner(
        model, separator if config.has_pairs and config.classes else None
    )


def completed(given: dict[str, Any], config: TextEncoderConfig) -> dict[str, Any]:
    """Settings of the scheduler: a text is never divided, and nothing of it is cached.

    A sequence has one more position than its text, for the token that ends it.
    """
    chosen = {name: one for name, one in given.items() if one is not None}
    settings = {**DEFAULTS, **chosen}
    length = settings.get("max_model_len") or config.max_tokens
    if length > config.max_tokens:
        raise ConfigError(f"max_model_len is {length}; the model has {config.max_tokens} positions")
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        if settings.get(name):
            raise ConfigError(f"{name} is not possible: an encoder reads a text as a whole")
    blocks = -(-(length + 1) // BLOCK)
    settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], length + 1)
    settings |= slots_within(settings, chosen)
    return settings | {
        "max_model_len": length + 1,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "block_size": BLOCK,
        "num_blocks": blocks * settings["max_num_seqs"],
    }
