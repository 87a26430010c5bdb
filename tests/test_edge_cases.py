"""Every edge case of schedulers that applies here has a test that names its number.

The tests are with the modules that they test; `grep -rn "Edge case 12:" tests` finds one.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
# Of 72, those of encoders, adapters, grammars, remote transfers, sliding windows and data
# parallelism come with the features; those of prefix statistics have another form here.
APPLY = {*range(1, 36), *range(41, 46), 52, 53, 60, *range(62, 73)}


def named(folder: Path) -> dict[int, list[str]]:
    """The tests of each edge case, by its number."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                told = re.match(r"Edge case (\d+)[:.]", ast.get_docstring(node) or "")
                if told:
                    found[int(told[1])].append(f"{path.name}::{node.name}")
    return found


def test_every_edge_case_that_applies_has_a_test() -> None:
    assert sorted(APPLY - named(TESTS).keys()) == []
