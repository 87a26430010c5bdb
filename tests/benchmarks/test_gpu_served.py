"""What the benchmark of servers on a GPU prepares, without a GPU."""

from pathlib import Path

from benchmarks import gpu_scripts
from benchmarks.gpu_served import COLUMNS, model_folder, summary
from benchmarks.tables import table
from paceline.runner.models.describe import config_in
from paceline.wiring.model_files import load_tokenizer


def test_the_folder_of_a_shape_has_a_model_and_a_tokenizer(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "smollm2")
    assert config_in(str(folder)).layers == 30
    tokenizer = load_tokenizer(str(folder), "dummy")
    assert tokenizer.vocab_size == 49152
    assert tokenizer.decode(tokenizer.encode("é")) == "é"


def test_a_folder_keeps_its_tokenizer(tmp_path: Path) -> None:
    given = model_folder(tmp_path, "tiny")
    (given / "tokenizer.json").write_text("{}")
    (tmp_path / "copies").mkdir()
    assert (model_folder(tmp_path / "copies", str(given)) / "tokenizer.json").read_text() == "{}"


def test_runs_have_different_prompts() -> None:
    for make, count in ((gpu_scripts.script, 256), (gpu_scripts.crowd, 1024)):
        (prompts, outs), (others, _) = make(1), make(2)
        assert len(prompts) == len(outs) == count
        assert prompts[0] != others[0]


def test_a_table_has_the_medians_of_each_engine() -> None:
    runs = [("paceline", 3.0), ("paceline", 5.0), ("paceline", 4.0), ("vllm", 2.0)]
    lines = [{"engine": engine, "case": "crowd:8", "tokens_per_s": rate} for engine, rate in runs]
    rows = table(summary(lines), COLUMNS).splitlines()
    assert rows[2:] == ["| crowd:8 | paceline | 4 |", "| crowd:8 | vllm | 2 |"]
