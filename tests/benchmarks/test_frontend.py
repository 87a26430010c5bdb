"""The benchmark of the front end runs, with a tiny vocabulary and few tokens."""

import json
from pathlib import Path

import pytest

from benchmarks.frontend import Sizes, main
from paceline.text.chat_template import CHATML
from paceline.wiring.model_files import bytes_as_tokens


def test_each_case_has_a_line_and_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = tmp_path / "bytes", tmp_path / "lines.jsonl"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()  # the null device reads neither
    bytes_as_tokens(300, CHATML).backend.save(str(model / "tokenizer.json"))
    cases = ["offline:4", "async:3", "served:3"]
    words = ["--model", str(model), "--cases", ",".join(cases), "--repeat", "1"]
    sizes = Sizes(requests=6, prompt=4, out=8, stream_out=8)
    main([*words, "--json", str(file)], sizes)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["case"] for line in lines] == cases
    assert [line["tokens"] for line in lines] == [48, 24, 24]
    assert lines[2]["failed"] == 0
    assert lines[2]["us"] == pytest.approx(lines[2]["core_us"] + lines[2]["frontend_us"], abs=0.02)
    printed = capsys.readouterr().out
    assert all(f"| {case} |" in printed for case in cases)
