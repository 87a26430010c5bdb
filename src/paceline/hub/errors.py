"""Errors of downloads."""

from paceline.core.errors import PacelineError


class FetchError(PacelineError):
    """A model cannot be downloaded, or what arrived is not what was promised."""
