"""Compiles the C kernels into a wheel, for every level of instructions of this kind of processor.

Without a compiler the wheel holds the sources alone, and they are compiled on first use.
"""

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/paceline/runner/native")


class KernelBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # compiled on first use, from sources that may change
            return
        recipe: Any = loaded(Path(self.root) / NATIVE / "build.py")
        self._folder = TemporaryDirectory()
        try:
            files = list(recipe.compile_all(Path(self._folder.name)))
        except recipe.CannotCompile as error:
            self.app.display_warning(f"the wheel has no compiled kernels: {error}")
            return
        inside = NATIVE.relative_to("src") / recipe.PREBUILT
        build_data["force_include"] |= {str(file): str(inside / file.name) for file in files}
        if files:
            build_data["tag"] = f"py3-none-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def loaded(file: Path) -> Any:
    """A module by its file, since its package needs what a build does not have."""
    spec = importlib.util.spec_from_file_location("kernel_build", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def platform_tag() -> str:
    """The kernels need nothing but the C library, so its version names the systems they run on."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    library = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    if library and platform.startswith("linux_"):
        version = library.split()[1].replace(".", "_")
        return f"many{platform.replace('linux_', f'linux_{version}_')}"
    return platform
