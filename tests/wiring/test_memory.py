"""How much memory is free, on machines and in containers of our making."""

from pathlib import Path

import pytest

from paceline.wiring.memory import free_bytes

MIB = 1 << 20


def machine(folder: Path, free: int = 900 * MIB) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal: 2000000 kB\nMemFree: 3 kB\nMemAvailable: {free // 1024} kB\n")
    return path


def container(folder: Path, limit: str, used: int = 300 * MIB, kept: int = 100 * MIB) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {kept}\n")
    return folder


def test_what_a_machine_can_give(tmp_path: Path) -> None:
    assert free_bytes(machine(tmp_path), tmp_path / "no group") == 900 * MIB


@pytest.mark.parametrize(
    ("limit", "free"),
    [("max", 900 * MIB), (str(500 * MIB), 300 * MIB), (str(9000 * MIB), 900 * MIB), ("1", 0)],
)
def test_a_container_may_give_less(tmp_path: Path, limit: str, free: int) -> None:
    assert free_bytes(machine(tmp_path), container(tmp_path, limit)) == free


def test_a_container_that_does_not_tell_all_is_none(tmp_path: Path) -> None:
    group = container(tmp_path, str(500 * MIB))
    (group / "memory.stat").write_text("anon 7\n")
    assert free_bytes(machine(tmp_path), group) == 900 * MIB


def test_containers_of_old_systems_have_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{500 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{300 * MIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n")
    assert free_bytes(machine(tmp_path), tmp_path) == 300 * MIB


def test_a_machine_that_does_not_tell_has_half_of_what_it_is_built_with(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "nothing", tmp_path) > 0


def test_this_machine_has_some() -> None:
    assert free_bytes() > 0
