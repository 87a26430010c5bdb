"""An EAGLE-3 head for a GPU drafts what a plain head over whole sequences does."""

from pathlib import Path

import pytest

from paceline import Request
from paceline.runner.weights.dummy import Dummy
from tests.gpu.cuda_backend import SMALL
from tests.gpu.eagle3 import compare_drafts
from tests.interpreted.host_device import large_programs, use_host
from tests.runner.support import tiny


def test_drafts_are_those_of_a_plain_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)
    use_host(monkeypatch)
    source, prompt = Dummy(tiny(**SMALL), seed=3), list(range(5, 15))  # in two chunks
    asked = [Request(id="a", prompt=prompt, max_tokens=5, ignore_eos=True)]  # pyright: ignore[reportArgumentType]
    how = {"max_num_batched_tokens": 8}
    compare_drafts("cpu", source, tmp_path, asked, **how)
