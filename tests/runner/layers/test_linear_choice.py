import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.runner.layers import linear_choice as module
from paceline.runner.layers.linear import DenseLinear
from paceline.runner.layers.linear_choice import KINDS, ROWS, choose
from paceline.runner.layers.native import NativeLinear
from tests.runner.support import tiny


def test_by_name() -> None:
    assert choose("float32", tiny()).kind is DenseLinear
    assert choose("int8", tiny()).kind is NativeLinear
    assert str(choose("int8", tiny())) == "int8 (as requested)"


def test_by_measurement() -> None:
    choice = choose("auto", tiny())
    assert choice.name in choice.measured_s
    assert {len(seconds) for seconds in choice.measured_s.values()} == {len(ROWS)}
    assert "float32" in choice.measured_s
    assert "rows: float32 " in str(choice)


def test_a_measurement_leaves_the_threads_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)  # more than a measurement takes
    try:
        choose("auto", tiny())
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("float32", "int8", "expected"),
    [((1, 1, 1, 1), (2, 2, 2, 0.1), "int8"), ((1, 1, 1, 1), (0.5, 0.5, 0.5, 9), "float32")],
)
def test_the_fastest_over_all_rows(
    monkeypatch: pytest.MonkeyPatch, float32: list[float], int8: list[float], expected: str
) -> None:
    measured = {DenseLinear: float32, NativeLinear: int8}
    monkeypatch.setattr(module, "measure", lambda kind, config: measured[kind])
    monkeypatch.setattr(module, "is_available", lambda: True)
    assert choose("auto", tiny()).name == expected


def test_without_a_compiler_float32_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_available", lambda: False)
    choice = choose("auto", tiny())
    assert (choice.name, list(choice.measured_s)) == ("float32", ["float32"])


@pytest.mark.parametrize(
    ("name", "hint"), [("int4", "int8"), ("float", "float32"), ("aut", "auto")]
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*mean '{hint}'"):
        choose(name, tiny())


def test_a_name_near_nothing_gets_all_of_them() -> None:
    with pytest.raises(ConfigError, match=f"there are auto, {', '.join(KINDS)}"):
        choose("zzz", tiny())
