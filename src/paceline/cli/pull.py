"""`paceline pull`: fetch a model into the cache."""

from dataclasses import dataclass

from paceline.cli.options import ModelArgument
from paceline.hub.catalogue import DEFAULT


@dataclass(frozen=True, slots=True)
class Options:
    """What to fetch."""

    model: ModelArgument = None


def run(options: Options) -> int:
    """Fetch a model, unless it is there, check it, and print where it is."""
    from paceline.hub.progress_bar import ProgressBar
    from paceline.hub.pull import pull

    model = options.model or DEFAULT
    with ProgressBar(model) as bar:
        path = pull(model, progress=bar)
    print(path)
    return 0
