"""`paceline pull`: download a model into the cache."""

from dataclasses import dataclass

from paceline.cli.options import ModelArgument, model_of


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The model."""

    model: ModelArgument = None


def run(options: PullOptions) -> int:
    """Download a model and print its path.

    A model that is on this machine already is not downloaded again.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.download import download

    model = model_of(options.model, None)
    with ProgressBar(model) as bar:
        path = download(model, bar)
    print(path)
    return 0
