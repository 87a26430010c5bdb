"""An engine among several of one core: figures and limits of all of them."""

import asyncio
from time import monotonic

import numpy as np
import pytest

from paceline.core.errors import QueueFull
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.metrics import Metrics
from paceline.engine.transport.thread import ThreadCore
from paceline.text.chat_template import ChatTemplate
from paceline.wiring.processes.front_end_main import SharedEngine
from tests.engine.support import ask, components, tokenizer


def test_reports_and_limits_are_those_of_all_engines() -> None:
    async def use() -> None:
        cells, figures = np.zeros((3, 1, Metrics.SIZE)), np.zeros(2)
        other = Metrics(cells[2, 0])
        other.generated(40)
        other.crashed()
        core = ThreadCore(components(max_num_seqs=4, max_num_queued_reqs=6).engine())
        template = ChatTemplate.of(tokenizer())
        frontend = Frontend(tokenizer(), template, monotonic, metrics=[Metrics(cells[0, 0])])
        async with SharedEngine(core, frontend, cells, figures) as engine:
            await engine.generate(ask("hello", max_tokens=3, ignore_eos=True)).whole()
            figures[:] = 8, 2  # requests that the core has of all front ends; deaths of the core
            report = await engine.stats()
            assert report.counters["generation_tokens"] == 43
            assert report.crashes == 2
            engine.check_room(2)
            with pytest.raises(QueueFull, match="8 requests are open; 3 more would exceed"):
                engine.check_room(3)

    asyncio.run(use())
