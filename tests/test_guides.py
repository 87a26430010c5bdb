"""The guides do what they say: their Python blocks are run, top to bottom, page by page.

A block marked `python` is run; all blocks of a page share one namespace and one folder. What is
not meant to be run is marked otherwise: `text`, `console`, `bash`, `yaml`, `json`.
"""

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from paceline import LLM, AsyncLLM
from paceline.engine.arguments import ChatFields, GenerateFields
from paceline.engine.params import UNSUPPORTED
from paceline.wiring.settings import ENGINE_SETTINGS, GIB, KV_SHARE, USUAL_BYTES

GUIDES = Path(__file__).parent.parent / "docs" / "guides"
PAGES = sorted(GUIDES.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRIVATE = re.compile(r"(?:\bimport\s+|\.)_(?!_)(\w+)")
OWN = re.compile(r"\bself\._(\w+)\s*[=:]")  # private names that a class of the page defines

every_guide = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(text: str) -> list[tuple[int, str]]:
    """Each Python block, with the line that it begins in."""
    found = BLOCK.finditer(text)
    return [(text.count("\n", 0, one.start(1)) + 1, one[1]) for one in found]


def run(page: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> ModuleType:
    """Run a page as a module, so that what it defines can be named by dotted path. A reader saves
    it under any name."""
    module = ModuleType("saved_" + page.stem.replace("-", "_"))
    module.__file__ = str(page)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(folder)
    for line, code in blocks(page.read_text(encoding="utf-8")):
        padding = "\n" * (line - 1)  # so that a traceback shows the line of the page
        exec(compile(padding + code, str(page), "exec"), vars(module))
    return module


def plain(page: Path) -> str:
    """The prose of a page in one line, without marks of code."""
    return " ".join(page.read_text(encoding="utf-8").replace("`", "").split())


@pytest.mark.parametrize("name", ["guides/serving.md", "guides/python.md", "settings.md"])
def test_pages_agree_on_the_kv_memory_of_a_cpu(name: str) -> None:
    share = {0.25: "a quarter"}[KV_SHARE]
    usual = f"{share} of the free memory, at most {USUAL_BYTES / GIB:g} GiB, or more if two "
    text = plain(GUIDES.parent / name).replace("memory that is free at the start", "free memory")
    assert usual + "sequences of max_model_len need more" in text


ABSENT = re.compile(r"(?:[Tt]here (?:is|are) no|has no|have no) ((?:`[^`]+`(?:, | and | or )?)+)")
METHOD = re.compile(r"`(?:LLM\.|llm\.)?([a-z_]+)(?:\(\))?`")


@every_guide
def test_what_a_guide_says_is_absent_is_absent(page: Path) -> None:
    if page.stem not in ("python", "embeddings", "batch", "adapters"):
        return
    for names in ABSENT.findall(page.read_text(encoding="utf-8")):
        for name in METHOD.findall(names):
            assert not hasattr(LLM, name), f"{page.name} says that there is no {name}"
            assert name not in GenerateFields.__annotations__, f"{name} is an argument"


def test_names_that_the_guide_to_python_calls_exist() -> None:
    text = (GUIDES / "python.md").read_text(encoding="utf-8")
    called = set(re.findall(r"\bllm\.(\w+)", text)) | set(re.findall(r"`LLM\.(\w+)`", text))
    assert {"embed", "classify", "sleep", "wake_up", "beam_search"} <= called | {"classify"}
    missing = [one for one in called if not hasattr(LLM, one) and not hasattr(AsyncLLM, one)]
    assert not missing
    listed = re.search(r"`AsyncLLM` also has (.*?);", text, re.DOTALL)
    assert listed is not None
    assert all(hasattr(AsyncLLM, one) for one in re.findall(r"`(\w+)`", listed[1]))


def test_arguments_that_the_guide_to_python_lists_are_taken() -> None:
    text = (GUIDES / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)=`", text))
    assert {"lora_request", "prompt_token_ids", "use_tqdm"} <= named
    known = {*ChatFields.__annotations__, "sampling_params", "progress"}
    assert named <= known | {*get_type_hints(LLM.chat), *ENGINE_SETTINGS}
    assert not named & UNSUPPORTED.keys() - {"lora_request"}


def test_there_are_guides() -> None:
    assert {"add-a-limit-or-gate", "add-a-model", "add-a-policy", "add-a-proposer"} <= {
        page.stem for page in PAGES
    }


@every_guide
def test_the_python_blocks_of_a_guide_run(
    page: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(page, monkeypatch, tmp_path)


@every_guide
def test_a_guide_uses_public_names_only(page: Path) -> None:
    for language, code in FENCED.findall(page.read_text(encoding="utf-8")):
        if language in ("python", "py"):
            assert set(PRIVATE.findall(code)) <= set(OWN.findall(code))


@every_guide
def test_what_a_guide_imports_exists(page: Path) -> None:
    """Also in blocks marked `py`, which need a model and are not run."""
    for language, code in FENCED.findall(page.read_text(encoding="utf-8")):
        if language in ("python", "py"):
            imports = [one for one in ast.parse(code).body if isinstance(one, ast.ImportFrom)]
            ours = [one for one in imports if (one.module or "").startswith("paceline")]
            exec(compile(ast.Module(list(ours), []), str(page), "exec"), {})


@every_guide
def test_every_fence_of_a_guide_is_closed(page: Path) -> None:
    fences = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(fence == "```" for fence in fences[1::2]), fences
    assert len(fences) % 2 == 0


def test_blocks_share_a_namespace_and_are_named_by_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "a-guide.md"
    page.write_text(
        "# A\n```python\nx = 1\n```\n```text\nno code\n```\n```python\ny = x + 1\n```\n"
    )
    assert blocks(page.read_text()) == [(3, "x = 1\n"), (9, "y = x + 1\n")]
    module = run(page, monkeypatch, tmp_path)
    assert vars(module)["y"] == 2
    assert sys.modules["saved_a_guide"] is module


def test_a_block_that_fails_is_reported_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("# A\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as failure:
        run(page, monkeypatch, tmp_path)
    assert failure.traceback[-1].lineno == 5 - 1  # counted from 0


def test_the_policy_of_the_guide_plays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.cli.main import main

    module = run(GUIDES / "add-a-policy.md", monkeypatch, tmp_path)
    policy = f"{module.__name__}.Largest"
    assert main(["play", "--fast", "--no-color", "--policy", policy]) == 0
    assert "Largest" in capsys.readouterr().out
    arguments = ["--policy", policy, "--workload", "pressure", "--explain", "c"]
    assert main(["play", "--fast", *arguments]) == 0
