"""A state from elsewhere makes no object of a foreign class, and runs nothing."""

from typing import Any

import pytest

from paceline.sched.replay.records import LENGTH, to_json
from paceline.sched.replay.state.decoder import Decoder

HERE = frozenset(["tests"])


def written(classes: Any, layouts: Any, nodes: Any, root: Any) -> bytes:
    head = to_json([classes, layouts, nodes, root]).encode()
    return LENGTH.pack(len(head)) + head


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("os", "system"),
        ("paceline.cli.main", "main"),
        ("paceline.core.plugins", "import_module"),
        ("paceline.core.settings.config", "Config.of"),
    ],
)
def test_a_foreign_class_is_refused(module: str, name: str) -> None:
    content = written([[module, name]], [[0, "args"]], [["object", 0, "ls"]], [0])
    with pytest.raises((ValueError, KeyError, TypeError)):
        Decoder(content, HERE)


def test_no_constructor_runs() -> None:
    class_name = ["tests.sched.replay.state.test_decoder", "Loud"]
    found = Decoder(written([class_name], [[0, "x"]], [["object", 0, 3]], [0]), HERE).root
    assert isinstance(found, Loud)
    assert found.x == 3


class Loud:
    x: int

    def __init__(self) -> None:
        raise AssertionError("a constructor ran")


def test_only_methods_are_bound() -> None:
    class_name = ["tests.sched.replay.state.test_decoder", "Loud"]
    nodes = [["object", 0], ["method", [0], "__class__"]]
    with pytest.raises(TypeError, match="__class__ is not a method"):
        Decoder(written([class_name], [[0]], nodes, [1]), HERE)
