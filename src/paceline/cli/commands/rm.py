"""`paceline rm`: delete a downloaded model."""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class RemoveOptions:
    """The model.

    Attributes:
        model (MODEL): A name that `paceline list` prints.
    """

    model: Annotated[str, typer.Argument()]


def run(options: RemoveOptions) -> int:
    """Delete a downloaded model from this machine."""
    from paceline.hub.local_models import remove

    gone = remove(options.model)
    print(f"removed {gone.name}, {gone.megabytes:,.1f} MB")
    return 0
