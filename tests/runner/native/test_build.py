import platform
from pathlib import Path

import pytest

from paceline.runner.native import build

X86 = "abm avx2 bmi1 bmi2 f16c fma movbe"
AVX512 = f"{X86} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("machine", "line", "level"),
    [
        ("x86_64", f"flags\t\t: fpu {AVX512} avx512_vnni", "avx512vnni"),
        ("x86_64", f"flags\t\t: fpu {AVX512}", "avx512"),
        ("x86_64", f"flags\t\t: fpu {X86}", "avx2"),
        ("x86_64", "flags\t\t: fpu sse4_2", None),
        ("aarch64", "Features\t: fp asimd asimddp", "dotprod"),
        ("aarch64", "Features\t: fp asimd", None),
        ("riscv64", "isa\t: rv64imafdc", None),
    ],
)
def test_the_level_of_a_processor(
    machine: str, line: str, level: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n")
    found = build.best_level(tmp_path / "cpuinfo")
    assert (found and found.name) == level
    assert build.best_level(tmp_path / "none") is None


def test_other_sources_and_compilers_have_other_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = build.prebuilt_name(build.LEVELS[0]), build.digest("a compiler")
    assert build.digest("another") != before[1]
    changed = tmp_path / "linear.c"
    changed.write_text(build.SOURCES[1].read_text(encoding="utf-8") + "\n")
    monkeypatch.setattr(build, "SOURCES", [build.SOURCES[0], changed, *build.SOURCES[2:]])
    assert build.prebuilt_name(build.LEVELS[0]) != before[0]
    assert build.digest("a compiler") != before[1]
