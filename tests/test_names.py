"""One class name has one meaning in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "paceline"


def classes(source: Path) -> dict[str, list[str]]:
    """The files that define each class, by its name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(source)))
    return found


def shared_names(source: Path) -> dict[str, list[str]]:
    return {name: files for name, files in classes(source).items() if len(files) > 1}


def test_no_class_name_is_defined_twice() -> None:
    assert shared_names(SOURCE) == {}


def test_two_classes_of_one_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Lane: ...\nclass Other: ...\n")
    (tmp_path / "b.py").write_text("def make():\n    class Lane: ...\n")
    assert shared_names(tmp_path) == {"Lane": ["a.py", "b.py"]}
