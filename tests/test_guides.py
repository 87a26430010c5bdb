"""The guides do what they say: their Python blocks are run, top to bottom, page by page.

A block marked `python` is run; all blocks of a page share one namespace and one folder. What is
not meant to be run is marked otherwise: `text`, `console`, `bash`, `yaml`, `json`.
"""

import ast
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
