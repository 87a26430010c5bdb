"""What can go wrong while a model is fetched."""

from paceline.core.errors import PacelineError


class FetchError(PacelineError):
    """The world's fault: what was asked for cannot be had from where it is, or not as promised."""
