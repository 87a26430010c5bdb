import pytest

from paceline.core.errors import ConfigError
from paceline.runner.layers import linear_choice as module
from paceline.runner.layers.linear_choice import KERNELS, choose
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import tiny

QUANTIZED = Dummy(tiny().loaded_as("int8"))


def test_by_name() -> None:
    exact = Dummy(tiny())
    assert not choose("float32", exact).is_native
    assert choose("int8", exact).is_native
    assert str(choose("int8", exact)) == "int8 (as requested)"


def test_weights_keep_the_precision_of_their_file() -> None:
    exact, quantized = choose("auto", Dummy(tiny())), choose("auto", QUANTIZED)
    assert str(exact) == "float32 (as precise as the file; --weights int8 is faster)"
    assert str(quantized) == "int8 (the weights are quantized)"


def test_without_a_compiler_float32_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_available", lambda: False)
    choice = choose("auto", QUANTIZED)
    assert str(choice) == "float32 (the int8 kernels cannot be compiled here)"


@pytest.mark.parametrize(
    ("name", "hint"), [("int4", "int8"), ("float", "float32"), ("aut", "auto")]
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*mean '{hint}'"):
        choose(name, Dummy(tiny()))


def test_a_name_near_nothing_gets_all_of_them() -> None:
    with pytest.raises(ConfigError, match=f"choose auto, {', '.join(KERNELS)}"):
        choose("zzz", Dummy(tiny()))
