"""The real server judged by llm-comply, which has the published schemas of three APIs.

The texts of the model are written here, so that what is judged is what the server makes of them.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llm_comply
import pytest
from llm_comply.config import ComplianceConfig
from llm_comply.http import close_client
from llm_comply.result import TestResult as Result
from llm_comply.runner import TestRunner as Runner
from llm_comply.schema import SpecLoader
from llm_comply.tests.anthropic import ANTHROPIC_TESTS
from llm_comply.tests.open_responses import OPEN_RESPONSES_TESTS
from llm_comply.tests.openai_chat import OPENAI_CHAT_TESTS

from paceline.engine.api import GenerationRequest, TokenizedPrompt
from paceline.engine.frontend.stream import DeltaStream
from paceline.server.settings import ServerSettings
from tests.server.fed import PATIENCE_S, FedEngine, FedStream, fed

SPECS = Path(llm_comply.__file__).parent / "specs"
FORMATS = {
    "openresponses.json": OPEN_RESPONSES_TESTS,
    "openai_chat.json": OPENAI_CHAT_TESTS,
    "anthropic.json": ANTHROPIC_TESTS,
}
# One name for which llm-comply tries reasoning in all three.
MODEL = "o1-claude-opus"
SETTINGS = ServerSettings(aliases=(MODEL,), tool_call_parser="hermes", reasoning_parser="qwen3")
THOUGHT = ("<think>\n", "It is a", "greeting.\n</think>\n\n")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Rome"}}\n</tool_call>'
OPTIONAL = "the server has one model, which a request need not name, as in vLLM"
# What does not pass, and why. A test that begins to pass has to leave the list.
EXCEPTIONS = {
    "error-handling": OPTIONAL,
    "chat-error-handling": OPTIONAL,
    "reasoning-summary": "reasoning is returned itself; no model summarizes it",
}
# What passes with a warning, and why. One without it has to leave the list.
WARNED = {"chat-reasoning-summary": "the texts written here have no tokens, so none are counted"}


class WritingEngine(FedEngine):
    """Answers each request with a text, or with a call if it has tools, and first with a thought if
    it asks for one."""

    def __init__(self) -> None:
        super().__init__()
        self._writing: set[asyncio.Task[None]] = set()
        self._texts: Sequence[str] = ()  # for the next request; there is one at a time

    async def tokenized(
        self, generation: GenerationRequest, images: Sequence[Any] | None = None
    ) -> TokenizedPrompt:
        is_thinking = (generation.variables or {}).get("enable_thinking")
        text = CALL if generation.tools else "Hello."
        self._texts = (*(THOUGHT if is_thinking else ()), text[:3], text[3:])
        return await super().tokenized(generation)

    def generate(self, generation: GenerationRequest) -> DeltaStream:
        found = super().generate(generation)
        task = asyncio.create_task(self._write(self.streams.pop(), self._texts))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return found

    async def _write(self, stream: FedStream, texts: Sequence[str]) -> None:
        for piece in texts:
            stream.text(piece)
            await asyncio.sleep(0)
        stream.end()


async def judged(spec: str) -> list[Result]:
    async with fed(SETTINGS, WritingEngine()) as site:
        config = ComplianceConfig(
            f"http://127.0.0.1:{site.port}/v1", "none", MODEL, timeout=PATIENCE_S
        )
        runner = Runner(config, FORMATS[spec], SpecLoader(str(SPECS / spec)))
        try:
            return (await asyncio.to_thread(runner.run_all)).results
        finally:
            close_client()


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
@pytest.mark.parametrize("spec", FORMATS)
def test_all_passes_but_the_exceptions(spec: str) -> None:
    results = asyncio.run(judged(spec))
    assert len(results) == len(FORMATS[spec]) >= 9
    found = {one.id: one.errors or one.warnings for one in results}
    wrong = {name: why for name, why in found.items() if why and name not in EXCEPTIONS | WARNED}
    assert not wrong
    failed = {one.id for one in results if one.status.value != "passed"}
    assert failed == EXCEPTIONS.keys() & found.keys()
    assert all(why for name, why in found.items() if name in WARNED)
