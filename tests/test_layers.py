"""The layers: who may import whom, and what must be installed for it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
LIGHT_LAYERS = ("core", "kv", "sched", "testing", "workloads")
LAYERS = sorted({f.relative_to(SOURCE / "paceline").parts[0] for f in SOURCE.rglob("*/*/*.py")})
LIGHT_FILES = sorted(f for name in LIGHT_LAYERS for f in (SOURCE / "paceline" / name).rglob("*.py"))
ALLOWED = {"paceline", "numpy"}

# Checks each folder in a fork: importing the linter takes longer than running it.
LINT_IMPORTS = """
import os, sys
from importlinter.cli import lint_imports

for folder in sys.argv[1:]:
    if not (pid := os.fork()):
        os.chdir(folder)
        sys.exit(lint_imports(no_cache=True))
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

# Imports every module of the light layers while the import system refuses all else but numpy.
IMPORT_LIGHTLY = f"""
import importlib, pkgutil, sys

allowed = sys.stdlib_module_names | {ALLOWED!r}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

def top_level():
    return {{name.partition(".")[0] for name in sys.modules}}

import numpy.random  # it comes with modules of Cython's own
before = top_level()
sys.meta_path.insert(0, Refuse())
import paceline
for layer in sys.argv[1:]:
    package = importlib.import_module("paceline." + layer)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*sorted(top_level() - before - allowed))
"""


def python(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script that finds paceline in `cwd` first, then in this checkout."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )


def package(root: Path, sources: dict[str, str]) -> Path:
    """A package with the same layers, nothing in them but `sources`, under the same contracts."""
    root.mkdir()
    (root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for layer in (*LAYERS, *sources):
        (root / "paceline" / layer).mkdir(parents=True, exist_ok=True)
        (root / "paceline" / layer / "__init__.py").write_text(sources.get(layer, ""))
    (root / "paceline" / "__init__.py").touch()
    return root


ALLOWED_PACKAGES: list[dict[str, str]] = [
    {},
    {
        "cli": "import paceline.testing, paceline.core, yaml",
        "sched": "import paceline.kv, numpy",
    },
    {"runner": "import paceline.core, torch", "engine": "import paceline.sched"},
    {"testing": "import paceline.engine", "engine": "import paceline.sched"},
]
REFUSED_PACKAGES: list[dict[str, str]] = [
    {"core": "import paceline.kv"},
    {"kv": "import paceline.sched"},
    {"sched": "import paceline.testing"},
    {"testing": "import paceline.cli"},
    {"engine": "import paceline.testing"},
    {"sched": "import paceline.runner", "runner": ""},
    {"runner": "import paceline.sched"},
    {"runner": "import paceline.kv"},
    {"core": "def f():\n    import yaml"},
    {"sched": "import torch"},
    {"testing": "import torch"},
    {"testing": "import paceline.engine", "engine": "import msgspec"},
    {"engine": "import torch"},
    {"engine/frontend": "", "engine/loop": "import paceline.engine.frontend"},
    {"server": "import paceline.runner"},
    {"engine": "import paceline.simulator"},
    {"server": "import paceline.viewer"},
    {"wiring": "import paceline.integrations.ray", "integrations/ray": ""},
    {"unheard_of": ""},
]


def test_import_contracts_hold_and_allow_and_refuse(tmp_path: Path) -> None:
    """In this checkout, and in packages that keep to them and break them."""
    made = [*ALLOWED_PACKAGES, *REFUSED_PACKAGES]
    roots = [package(tmp_path / str(number), sources) for number, sources in enumerate(made)]
    done = python(LINT_IMPORTS, *map(str, [ROOT, *roots]), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(.*?)^status (\d+)$", done.stdout, re.MULTILINE | re.DOTALL)
    for (said, status), sources in zip(found, [{}, *made], strict=True):
        if sources in REFUSED_PACKAGES:
            assert status == "1", sources
            assert "BROKEN" in said or "unheard_of" in said, (sources, said)
        else:
            assert status == "0", (sources, said)


def third_party(text: str) -> set[str]:
    """Top-level packages a file imports, wherever it does, beyond the allowed and the stdlib."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found - ALLOWED - sys.stdlib_module_names


def test_light_layers_name_numpy_alone() -> None:
    found = {path: third_party(path.read_text(encoding="utf-8")) for path in LIGHT_FILES}
    assert not {path: named for path, named in found.items() if named}


def test_third_party_imports_are_found() -> None:
    text = "import os, attrs, numpy.ma\ndef f():\n    from yaml import y"
    assert third_party(text) == {"attrs", "yaml"}


def reads_state(text: str) -> list[int]:
    """Lines that read the scheduler's inner state, which changes with `sched` alone."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in ("state", "components")
        and ast.unparse(node.value).endswith("scheduler")
    ]


OUTSIDE_SCHED = sorted(
    path
    for path in (SOURCE / "paceline").rglob("*.py")
    if path.relative_to(SOURCE / "paceline").parts[0] != "sched"
)


def test_only_sched_reads_the_state_of_a_scheduler() -> None:
    """Other layers ask `Scheduler.view`."""
    found = {path: reads_state(path.read_text(encoding="utf-8")) for path in OUTSIDE_SCHED}
    assert not {path: lines for path, lines in found.items() if lines}


def test_a_read_of_the_state_is_found() -> None:
    assert reads_state("x = 1\nlive = scheduler.state.live") == [2]
    assert reads_state("x = self._scheduler.components\ny = sequence.state") == [1]


def test_light_layers_import_with_numpy_alone() -> None:
    done = python(IMPORT_LIGHTLY, *LIGHT_LAYERS, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_import_check_refuses_what_is_not_numpy() -> None:
    done = python(IMPORT_LIGHTLY + "import yaml", *LIGHT_LAYERS, cwd=ROOT)
    assert "yaml is not installed here" in done.stderr
