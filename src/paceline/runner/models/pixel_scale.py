"""From pixels of 0 to 255 to the numbers that a vision tower reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError

Channels = tuple[float, float, float]
BYTE = 1 / 255


@dataclass(frozen=True, slots=True)
class PixelScale:
    """A pixel x of a channel becomes (x * factor - mean) / std."""

    factor: float
    mean: Channels
    std: Channels

    @staticmethod
    def of_hf(settings: Mapping[str, Any], mean: Channels, std: Channels) -> "PixelScale":
        """Read the settings of an image processor; `mean` and `std` are its defaults."""
        factor = settings.get("rescale_factor", BYTE) if settings.get("do_rescale", True) else 1.0
        if not settings.get("do_normalize", True):
            return PixelScale(float(factor), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        return PixelScale(
            float(factor),
            channels(settings, "image_mean", mean),
            channels(settings, "image_std", std),
        )


def channels(settings: Mapping[str, Any], key: str, default: Channels) -> Channels:
    given = settings.get(key) or default
    if len(given) != len(default):
        raise ConfigError(f"the image processor has {key} = {given!r}; it must be three numbers")
    red, green, blue = map(float, given)
    return red, green, blue
