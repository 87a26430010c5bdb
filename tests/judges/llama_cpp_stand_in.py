"""Lets the tests of llama.cpp's server find paceline, of which it starts one for all of them."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from served import PORT, Served

# Without the /v1 that OpenAI's clients send, these are routes of llama.cpp alone.
SHORT = ("/chat/completions", "/completions", "/embeddings", "/models", "/responses", "/messages")
# What the tests call the model, of which llama.cpp ignores the name.
NAMES = [
    part
    for name in ("tinyllama-2", "gpt-3.5-turbo-instruct", "gpt-3.5-turbo", "gpt-4.1", "test")
    for part in ("--served-model-name", name)
]


def stand_in() -> None:
    os.environ |= {"DEBUG_EXTERNAL": "1", "PORT": str(PORT)}
    sys.modules["wget"] = ModuleType("wget")
    sys.path.insert(0, str(Path.cwd()))
    import utils  # type: ignore[import-not-found]

    process: Any = utils.ServerProcess
    make_url = process.make_url

    def with_version(self: Any, path: str, host: str | None = None) -> str:
        return make_url(self, f"/v1{path}" if path.startswith(SHORT) else path, host)

    process.make_url = with_version


SERVED = Served()
SERVED.start("tinyllama-2", NAMES)
stand_in()
