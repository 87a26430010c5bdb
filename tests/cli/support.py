"""A tiny real model in a folder, and a server on a thread of its own."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.golden.support import SIZES, saved
from tests.server.support import Site, served

TEXT = "the quick brown fox jumps over the lazy dog and the cat sat on the mat"
PATIENCE_S = 30.0
SMALL = ("--kv-cache-gib", "0.01", "--max-num-seqs", "4")


def tiny_model(folder: Path) -> Path:
    """A llama with random weights, and a tokenizer trained on one sentence."""
    saved("llama", folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZES["vocab_size"], special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


@contextmanager
def serving(**settings: Any) -> Iterator[Site]:
    """For commands that have an event loop of their own, or are processes."""
    opened: Future[tuple[Site, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        over = asyncio.Event()
        async with served(**settings) as site:
            opened.set_result((site, asyncio.get_running_loop(), over))
            await over.wait()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(asyncio.run, main())
        site, loop, over = opened.result(PATIENCE_S)
        try:
            yield site
        finally:
            loop.call_soon_threadsafe(over.set)
            running.result(PATIENCE_S)
