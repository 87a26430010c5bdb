"""The rules of size, naming and imports, held over the whole source; raising a number takes an ADR.

Cyclomatic complexity is bounded by the linter (C901), not here.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from textwrap import indent
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paceline"
FILES = sorted(SOURCE.rglob("*.py"))

LINES_PER_FILE = 400
LINES_PER_FUNCTION = 60
ATTRIBUTES_PER_CLASS = 15
ARGUMENTS = 7
MODULES_PER_FOLDER = 15
# Folders whose modules are found by name, and that hold nothing else.
PLUG_INS = {"cli/commands", "sched/policies", "runner/models/architectures", "tools/formats"}
BANNED_WORDS = {"manager", "handler", "helper", "utils", "info", "data", "meta"}
STRICT_LAYERS = {"core", "kv", "sched", "engine"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    path: PurePosixPath  # relative to the package
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # all of the tree

    @property
    def is_strict(self) -> bool:
        return self.path.parts[0] in STRICT_LAYERS


def parse(path: str, text: str) -> Module:
    tree = ast.parse(text)
    return Module(PurePosixPath(path), text, tree, tuple(ast.walk(tree)))


def functions(module: Module) -> Iterator[Function]:
    return (n for n in module.nodes if isinstance(n, Function))


def is_kernel(function: Function) -> bool:
    """Is it compiled for a GPU? Such a function takes each pointer, stride and constant by
    itself, and cannot be cut without a price (decision 0023)."""
    return any("triton.jit" in ast.unparse(one) for one in function.decorator_list)


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (n for n in module.nodes if isinstance(n, ast.ClassDef))


def file_length(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > LINES_PER_FILE:
        yield f"{lines} lines, more than {LINES_PER_FILE}"


def function_length(module: Module) -> Iterator[str]:
    for function in functions(module):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if lines > LINES_PER_FUNCTION and not is_kernel(function):
            yield f"{function.name}: {lines} lines, more than {LINES_PER_FUNCTION}"


def own_nodes(cls: ast.ClassDef) -> Iterator[ast.AST]:
    """Everything inside a class except what belongs to a class inside it."""
    pending = list(ast.iter_child_nodes(cls))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))


def attributes(cls: ast.ClassDef) -> set[str]:
    """Names stored on self, and fields declared in the class body."""
    stored = {
        node.attr
        for node in own_nodes(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    declared = {
        statement.target.id
        for statement in cls.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    }
    return stored | declared


def class_attributes(module: Module) -> Iterator[str]:
    for cls in classes(module):
        names = attributes(cls)
        if len(names) <= ATTRIBUTES_PER_CLASS:
            continue
        unnamed = names - set(re.findall(r"\w+", ast.get_docstring(cls) or ""))
        if unnamed:
            yield (
                f"{cls.name}: {len(names)} attributes, more than {ATTRIBUTES_PER_CLASS}, "
                f"and its docstring does not name {', '.join(sorted(unnamed))}"
            )


def argument_count(function: Function, *, is_method: bool) -> int:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    is_static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    receiver = int(is_method and not is_static and len(positional) > 0)
    return len(positional) + len(arguments.kwonlyargs) - receiver


def function_arguments(module: Module) -> Iterator[str]:
    methods = {f for cls in classes(module) for f in cls.body if isinstance(f, Function)}
    for function in functions(module):
        count = argument_count(function, is_method=function in methods)
        if count > ARGUMENTS and not is_kernel(function):
            yield f"{function.name}: {count} arguments, more than {ARGUMENTS}"


def module_docstring(module: Module) -> Iterator[str]:
    if module.tree.body and ast.get_docstring(module.tree) is None:
        yield "no module docstring"


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


OF_LIBRARIES = {"get_route_handler"}  # methods that a library calls by these names


def banned_words(module: Module) -> Iterator[str]:
    named = [
        *module.path.with_suffix("").parts,
        *(function.name for function in functions(module)),
        *(cls.name for cls in classes(module)),
    ]
    for name in named:
        if name not in OF_LIBRARIES and (banned := words(name) & BANNED_WORDS):
            yield f"{name}: says nothing with {', '.join(sorted(banned))}"


def type_checking(module: Module) -> Iterator[str]:
    """Import contracts leave such imports out, so no layer may have one; the package itself does,
    for names that are imported on first use."""
    if len(module.path.parts) == 1:
        return
    for node in module.nodes:
        if "TYPE_CHECKING" in (getattr(node, name, None) for name in ("id", "attr", "name")):
            yield "TYPE_CHECKING: if one is wanted, the layering is wrong"


def nested_imports(module: Module) -> Iterator[str]:
    if not module.is_strict:
        return
    top = set(module.tree.body)
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in top:
            yield f"line {node.lineno}: import below the top of the file"


Rule = Callable[[Module], Iterator[str]]

RULES: list[Rule] = [
    file_length,
    function_length,
    class_attributes,
    function_arguments,
    module_docstring,
    banned_words,
    type_checking,
    nested_imports,
]


def test_there_is_source_to_check() -> None:
    assert FILES


def test_source_keeps_to_the_budget() -> None:
    faults: list[str] = []
    for path in FILES:
        module = parse(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))
        faults += [f"{module.path}: {fault}" for rule in RULES for fault in rule(module)]
    assert not faults, "\n".join(faults)


def crowded(paths: Iterable[PurePosixPath]) -> list[str]:
    """Folders with more modules than fit into one."""
    count = Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")
    most = MODULES_PER_FOLDER
    return [name for name, held in count.items() if held > most and name not in PLUG_INS]


def test_a_folder_holds_few_modules() -> None:
    assert crowded(PurePosixPath(path.relative_to(SOURCE).as_posix()) for path in FILES) == []
    many = [PurePosixPath(f"core/a{number}.py") for number in range(16)]
    assert crowded([*many[1:], PurePosixPath("core/__init__.py")]) == []
    assert crowded(many) == ["core"]
    assert all((SOURCE / name).is_dir() for name in PLUG_INS)


# What follows shows that each rule can fail, and where it stops.


def lines(count: int, line: str = "pass") -> str:
    return "\n".join([line] * count) + "\n"


def function(count: int) -> str:
    return "def f():\n" + lines(count - 1, "    pass")


def stores(count: int, docstring: str = "") -> str:
    body = "".join(f"        self.a{i} = 0\n" for i in range(count))
    return f'class C:\n    """{docstring}"""\n    def __init__(self):\n{body}'


def fields(count: int, annotation: str = "int") -> str:
    body = "".join(f"    a{i}: {annotation}\n" for i in range(count))
    return f"@dataclass\nclass C:\n{body}"


def names(count: int) -> str:
    return ", ".join(f"a{i}" for i in range(count))


FAULTY: list[tuple[Rule, str, str]] = [
    (file_length, "core/a.py", lines(401)),
    (function_length, "core/a.py", function(61)),
    (function_length, "core/a.py", "async " + function(61)),
    (class_attributes, "core/a.py", stores(16)),
    (class_attributes, "core/a.py", stores(16, docstring=names(15))),
    (class_attributes, "core/a.py", stores(16).replace("a1 = 0", "a1: int = 0")),
    (class_attributes, "core/a.py", stores(16).replace("self.a1 = 0", "self.a1, b = 0, 0")),
    (class_attributes, "core/a.py", stores(16).replace("a1 =", "a1 +=")),
    (class_attributes, "core/a.py", fields(16)),
    (class_attributes, "core/a.py", fields(15) + "    def f(self): self.b = 0\n"),
    (function_arguments, "core/a.py", f"def f({names(8)}): ..."),
    (function_arguments, "core/a.py", f"def f(a, /, b, *, {names(6)}): ..."),
    (function_arguments, "core/a.py", f"class C:\n    def f(self, {names(8)}): ..."),
    (function_arguments, "core/a.py", f"class C:\n    @staticmethod\n    def f({names(8)}): ..."),
    (module_docstring, "core/a.py", "x = 1"),
    (banned_words, "core/block_manager.py", ""),
    (banned_words, "kv/utils/a.py", ""),
    (banned_words, "core/a.py", "def load_data(): ..."),
    (banned_words, "core/a.py", "class C:\n    def _helper(self): ..."),
    (banned_words, "core/a.py", "class BatchInfo: ..."),
    (banned_words, "core/a.py", "class KVMetaStore: ..."),
    (banned_words, "core/a.py", "class HTTPHandler2: ..."),
    (type_checking, "core/a.py", "from typing import TYPE_CHECKING"),
    (type_checking, "cli/a.py", "from typing import TYPE_CHECKING"),
    (type_checking, "kv/a.py", "import typing\nif typing.TYPE_CHECKING: ..."),
    (nested_imports, "sched/a.py", "def f():\n    import math"),
    (nested_imports, "sched/policies/a.py", "try:\n    from math import pi\nfinally: ..."),
]

SOUND: list[tuple[Rule, str, str]] = [
    (file_length, "core/a.py", lines(400)),
    (function_length, "core/a.py", function(60)),
    (class_attributes, "core/a.py", stores(15)),
    (class_attributes, "core/a.py", stores(16, docstring=f"Columns: {names(16)}.")),
    (class_attributes, "core/a.py", fields(15)),
    (class_attributes, "core/a.py", fields(16, "ClassVar[int]")),
    (class_attributes, "core/a.py", "class D:\n    b: int\n" + indent(fields(15), "    ")),
    (function_arguments, "core/a.py", f"def f({names(7)}, *rest, **options): ..."),
    (function_arguments, "core/a.py", f"class C:\n    def f(self, {names(7)}): ..."),
    (function_arguments, "core/a.py", f"class C:\n  @classmethod\n  def f(cls, {names(7)}): ..."),
    (function_arguments, "core/a.py", fields(8)),
    (module_docstring, "core/__init__.py", ""),
    (module_docstring, "core/a.py", '"""The file\'s one job."""\nx = 1'),
    (banned_words, "core/metadata.py", "class Informed: ...\ndef dataset(): ..."),
    (type_checking, "__init__.py", "from typing import TYPE_CHECKING"),
    (nested_imports, "cli/a.py", "def f():\n    import math"),
    (nested_imports, "sched/a.py", "import math"),
]


@pytest.mark.parametrize(("rule", "path", "text"), FAULTY)
def test_rule_finds_the_fault(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(parse(path, text)))) == 1


@pytest.mark.parametrize(("rule", "path", "text"), SOUND)
def test_rule_lets_sound_code_pass(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text))) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule for rule, _, _ in FAULTY} == set(RULES)
