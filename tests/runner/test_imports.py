"""The runner needs numpy and torch alone, but for foreign formats and kernels for a GPU."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "paceline" / "runner"
FILES = sorted(SOURCE.rglob("*.py"))
ALLOWED = {"paceline", "numpy", "torch"}
READERS = {
    "weights/safetensors.py": {"safetensors"},
    "draft_heads/eagle3_folder.py": {"safetensors"},
    "adapters/weights.py": {"safetensors"},
    "layers/packed_cache.py": {"safetensors"},
}
BACKENDS = {
    "attention/flashinfer.py": {"flashinfer"},
    "attention/triton.py": {"triton"},
    "attention/triton_fixed.py": {"triton"},
}
KERNELS = "cuda/"  # the folder whose modules may use triton
HEAVY = "paceline.runner.weights.safetensors"
PACKED = "paceline.runner.layers.packed_cache"  # nothing that a GPU needs may import it either
MAY_IMPORT_HEAVY = {"draft_heads/eagle3_folder.py", "weights/files.py"}


def imported(path: Path) -> set[str]:
    """Modules that a file names, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_needs_torch_alone(path: Path) -> None:
    name, modules = path.relative_to(SOURCE).as_posix(), imported(path)
    foreign = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    if name.startswith(KERNELS):
        foreign.discard("triton")
    assert foreign - ALLOWED == (READERS | BACKENDS).get(name, set())
    assert HEAVY not in modules or name in MAY_IMPORT_HEAVY
    assert PACKED not in modules
