"""Rotary frequencies of pairs of dimensions."""

from collections.abc import Mapping
from math import pi
from typing import Any

from paceline.core.errors import ConfigError

Frequencies = tuple[float, ...]  # [head_dim / 2], radians per position


def frequencies(theta: float, head_dim: int) -> Frequencies:
    return tuple(theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2))


def scaled(plain: Frequencies, scaling: Mapping[str, Any]) -> Frequencies:
    """Apply a `rope_scaling` of HF to plain frequencies."""
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    try:
        if kind == "default":
            return plain
        if kind == "linear":
            return tuple(frequency / float(scaling["factor"]) for frequency in plain)
        if kind == "llama3":
            return tuple(_llama3(frequency, scaling) for frequency in plain)
    except KeyError as missing:
        raise ConfigError(f"rope scaling {kind!r} lacks {missing}") from None
    raise ConfigError(f"rope scaling {kind!r} is not supported")


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Low frequencies are divided by the factor, high ones stay, those between are interpolated."""
    turns = frequency * float(scaling["original_max_position_embeddings"]) / (2 * pi)
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * (kept + (1 - kept) / float(scaling["factor"]))
