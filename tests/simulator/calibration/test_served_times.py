"""Terms of host and front end: from times that are known, and of a real engine."""

from time import monotonic

import numpy as np
import pytest

from paceline.core.settings.config import Config
from paceline.engine.frontend.frontend import Frontend
from paceline.simulator.calibration import served_times
from paceline.simulator.calibration import served_times as idle_device
from paceline.simulator.calibration.served_times import SentRequest, TurnLog, served_terms, terms_of
from paceline.simulator.device.profile import FrontEndTerms, HostTerms
from paceline.text.chat_template import ChatTemplate
from tests.engine.support import tokenizer

HOST = HostTerms(
    plan_s=1e-4,
    plan_row_s=1e-6,
    change_s=3e-4,
    admit_s=5e-5,
    finish_s=2e-5,
    commit_s=2e-4,
    commit_row_s=2e-6,
)
FRONT_END = FrontEndTerms(request_s=1e-3, prompt_token_s=1e-6, delivery_s=4e-4, delivery_row_s=3e-6)
STEPS = 6  # of a burst


def known_log() -> tuple[TurnLog, list[SentRequest]]:
    """Bursts of requests with one step in flight, on a host that takes what the terms say."""
    lines, requests, now = list[tuple[float, ...]](), list[SentRequest](), 100.0
    for count, prompt in ((1, 16), (1, 2000), (1, 500), (8, 16), (64, 16), (200, 16)):
        sent = now
        now += FRONT_END.request_s + prompt * FRONT_END.prompt_token_s
        times: list[float] = []
        for step in range(STEPS):
            admitted = count if step == 0 else 0
            finished = count // 2 if step == STEPS - 1 else 0
            rows, changed = count - finished, int(bool(admitted or finished))
            planning = now
            now += HOST.plan_s + rows * HOST.plan_row_s + changed * HOST.change_s
            now += admitted * HOST.admit_s + finished * HOST.finish_s
            launched = now
            landed = launched + 0.01
            now = landed + HOST.commit_s + rows * HOST.commit_row_s
            lines.append(
                (planning, launched, landed, now - 1e-9, rows, admitted, finished, changed)
            )
            times.append(now + FRONT_END.deliver_s(rows))
        requests.append(SentRequest(prompt, sent, np.array(times), count == 1))
        now += 1.0
    return TurnLog(*map(np.array, zip(*lines, strict=True))), requests


def test_each_time_becomes_its_own_term() -> None:
    host, front_end = terms_of(*known_log())
    for found, known in ((host, HOST), (front_end, FRONT_END)):
        for name in known.__slots__:
            if name == "mixed_s":
                continue  # what launching takes more is measured with a device
            assert getattr(found, name) == pytest.approx(getattr(known, name), rel=0.01), name


def test_a_real_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, with a device that computes nothing."""
    monkeypatch.setattr(served_times, "ROWS", (1, 4))
    monkeypatch.setattr(served_times, "ALONE", 2)
    words = tokenizer()
    front_end = Frontend(words, ChatTemplate.of(words), monotonic)
    config = Config.of(max_model_len=512, max_num_seqs=4, num_blocks=256)
    host, found = served_terms(config, 2, front_end)
    assert 0 < host.plan_s + host.change_s < 5 * idle_device.STEP_S
    assert 0 < host.commit_s + host.commit_row_s < 5 * idle_device.STEP_S
    assert 0 < found.request_s + found.prompt_token_s < 5 * idle_device.STEP_S
