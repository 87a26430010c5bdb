"""The settings of an engine as flags, made from the settings themselves."""

import argparse
from dataclasses import MISSING, fields
from typing import Any, cast

from paceline.core.config import PARTS, LoadConfig
from paceline.hub.catalogue import DEFAULT

HIDDEN = ("num_blocks", "swap_space", "tenant_weights")  # of the scheduler: an engine has its own


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, and every setting by its name."""
    parser.add_argument(
        "--model",
        default=DEFAULT,
        help="a name that `pull` knows, a .gguf file, a folder, or owner/name (%(default)s)",
    )
    group = parser.add_argument_group("settings", "named and meant as in the documentation")
    for kind in (LoadConfig, *PARTS.values()):
        for setting in fields(kind):
            if setting.default is MISSING or (kind is not LoadConfig and setting.name in HIDDEN):
                continue
            add_setting(group, setting.name, setting.default)


def add_setting(group: argparse._ArgumentGroup, name: str, default: Any) -> None:  # pyright: ignore[reportPrivateUsage]
    flag = "--" + name.replace("_", "-")
    if isinstance(default, bool):
        group.add_argument(
            flag, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS
        )
        return
    kind: type[Any] = cast("type[Any]", type(default))
    group.add_argument(flag, dest=name, type=kind, default=argparse.SUPPRESS, metavar=repr(default))


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given."""
    known = {one.name for kind in (LoadConfig, *PARTS.values()) for one in fields(kind)}
    return {name: value for name, value in vars(args).items() if name in known}
