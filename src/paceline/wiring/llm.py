"""A model for a program: in a script, or in an event loop. Neither needs a server."""

from typing import Any

from paceline.engine import async_llm, llm
from paceline.engine.core.components import factory_named
from paceline.engine.core.thread import ThreadCore
from paceline.hub.catalogue import DEFAULT
from paceline.wiring.settings import for_batches

# By name, since importing it takes seconds and memory that a front end does not need.
FACTORY = "paceline.wiring.assembly:build"


class LLM(llm.LLM):
    """A model to call from a script: `LLM("smollm2").generate(["Hello"])`.

    Its policy is `longest` where none is given.
    """

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        super().__init__(model, factory_named(FACTORY), **for_batches(settings))


class AsyncLLM(async_llm.AsyncLLM):
    """A model for an event loop, with the step loop on a thread of its own."""

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        parts = factory_named(FACTORY)(model, **settings)
        engine = parts.engine()
        super().__init__(ThreadCore(engine), parts.frontend(engine))
