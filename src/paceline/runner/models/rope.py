"""Rotary position embedding: how pairs of dimensions of a head rotate with position."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log, pi, sqrt
from typing import Any

from paceline.core.errors import ConfigError

Frequencies = tuple[float, ...]  # [rotated dimensions / 2], radians per position
AXES = 3  # coordinates of a position: time, row, column
BETA_FAST, BETA_SLOW = 32.0, 1.0  # rotations within the original length, of YaRN


@dataclass(frozen=True, slots=True)
class Rope:
    """Pair i of a head rotates by `frequencies[i]` per position and grows by `amplitudes[i]`.

    A position may have several coordinates, such as its row and column in an image. Pair i rotates
    by coordinate `axes[i]`; without axes, a position is one number.
    """

    frequencies: Frequencies
    amplitudes: tuple[float, ...]
    axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.frequencies) == len(self.amplitudes)
        assert len(self.axes) in (0, len(self.frequencies))

    @staticmethod
    def plain(frequencies: Frequencies, amplitude: float = 1.0) -> "Rope":
        return Rope(frequencies, (amplitude,) * len(frequencies))

    def padded(self, pairs: int) -> "Rope":
        """Further pairs, up to so many, stay as they are."""
        rest = pairs - len(self.frequencies)
        axes = (*self.axes, *[0] * rest) if self.axes else ()
        return Rope((*self.frequencies, *[0.0] * rest), (*self.amplitudes, *[1.0] * rest), axes)


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """A query at position p is multiplied by 1 + factor * log(1 + floor((p + offset) / length))."""

    factor: float
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class RopeChoice:
    """The rope of a model, which may depend on the longest sequence that it is to compute.

    Keys stay in memory as they were rotated, so a model has one rope from start to end.
    """

    short: Rope
    long: Rope
    limit: int = 0  # length of the longest sequence that the short one is for

    @staticmethod
    def always(rope: Rope) -> "RopeChoice":
        return RopeChoice(rope, rope)

    def at(self, max_model_len: int) -> Rope:
        return self.short if max_model_len <= self.limit else self.long

    def padded(self, pairs: int) -> "RopeChoice":
        return RopeChoice(self.short.padded(pairs), self.long.padded(pairs), self.limit)

    def with_sections(self, sections: Sequence[int], is_interleaved: bool = False) -> "RopeChoice":
        """So many pairs rotate by the first coordinate of a position, so many by the second … They
        stand one behind the other, or take turns for as long as the second and third last."""
        pairs = len(self.long.frequencies)
        if len(sections) != AXES or sum(sections) != pairs:
            raise ConfigError(
                f"mrope_section is {list(sections)!r}; it must have {AXES} numbers, of {pairs} "
                "pairs together"
            )
        axes = tuple(axis for axis, number in enumerate(sections) for _ in range(number))
        if is_interleaved:
            turns = ((pair, pair % AXES) for pair in range(pairs))
            axes = tuple(axis if pair < AXES * sections[axis] else 0 for pair, axis in turns)
        return RopeChoice(replace(self.short, axes=axes), replace(self.long, axes=axes), self.limit)


def frequencies(theta: float, dims: int) -> Frequencies:
    return tuple(theta ** (-2 * pair / dims) for pair in range(dims // 2))


def scaled(plain: Frequencies, scaling: Mapping[str, Any], max_position: int = 0) -> RopeChoice:
    """Apply a `rope_scaling` of HF to plain frequencies.

    `max_position` is the length of the longest sequence that the model is for.
    """
    kind = _kind(scaling)
    if kind not in SCALINGS:
        known = ", ".join(SCALINGS)
        raise ConfigError(f"rope scaling {kind!r} is not supported; choose one of {known}")
    try:
        return SCALINGS[kind](plain, scaling, max_position)
    except KeyError as missing:
        raise ConfigError(f"rope scaling {kind!r} lacks {missing}") from None


def _kind(scaling: Mapping[str, Any]) -> str:
    """The name of a scaling. LongRoPE has had others, one of which now means YaRN."""
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "mrope":
        return "default"  # the sections are read elsewhere
    return "longrope" if kind == "su" or (kind == "yarn" and "short_factor" in scaling) else kind


def _default(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    return RopeChoice.always(Rope.plain(plain))


def _linear(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    factor = float(scaling["factor"])
    return RopeChoice.always(Rope.plain(tuple(frequency / factor for frequency in plain)))


def _llama3(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    """Low frequencies are divided by the factor, high ones stay, those between are interpolated."""
    length, factor = float(scaling["original_max_position_embeddings"]), float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])

    def one(frequency: float) -> float:
        rotations = frequency * length / (2 * pi)
        kept = min(max((rotations - low) / (high - low), 0.0), 1.0)
        return frequency * (kept + (1 - kept) / factor)

    return RopeChoice.always(Rope.plain(tuple(map(one, plain))))


def _yarn(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    """As for llama3, but interpolated by the index of a pair, and all pairs grow."""
    length = float(scaling["original_max_position_embeddings"])
    factor = float(scaling["factor"] or max_position / length)
    bounds = [
        _pair_index(float(scaling.get(name) or default), plain, length)
        for name, default in (("beta_fast", BETA_FAST), ("beta_slow", BETA_SLOW))
    ]
    if scaling.get("truncate", True):
        bounds = [floor(bounds[0]), ceil(bounds[1])]
    low, high = max(bounds[0], 0), min(bounds[1], 2 * len(plain) - 1)
    found: list[float] = []
    for pair, frequency in enumerate(plain):
        slowed = min(max((pair - low) / ((high - low) or 0.001), 0.0), 1.0)
        found.append(frequency * (1 - slowed + slowed / factor))
    return RopeChoice.always(Rope.plain(tuple(found), _yarn_amplitude(scaling, factor)))


def _pair_index(rotations: float, plain: Frequencies, length: float) -> float:
    """The index of the pair, as a fraction, that rotates so often within a length.

    Frequencies fall by the same ratio from pair to pair, so their logarithms fall evenly.
    """
    step = log(plain[0] / plain[1])
    return log(plain[0] * length / (rotations * 2 * pi)) / step


def _yarn_amplitude(scaling: Mapping[str, Any], factor: float) -> float:
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)

    def grown(by: float) -> float:
        return 0.1 * by * log(factor) + 1.0 if factor > 1 else 1.0

    each, every = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return grown(float(each)) / grown(float(every)) if each and every else grown(1.0)


def _longrope(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    """Each pair has a factor of its own; sequences beyond the original length have others."""
    limit = int(scaling["original_max_position_embeddings"])
    factor = float(scaling.get("factor") or max_position / limit)
    amplitude = scaling.get("attention_factor")
    if amplitude is None:
        amplitude = sqrt(1 + log(factor) / log(limit)) if factor > 1 else 1.0
    short, long = (
        Rope.plain(divided(plain, scaling[f"{kind}_factor"], f"{kind}_factor"), float(amplitude))
        for kind in ("short", "long")
    )
    return RopeChoice(short, long, limit)


def divided(plain: Frequencies, factors: Sequence[float], where: str) -> Frequencies:
    if len(factors) != len(plain):
        raise ConfigError(f"{where} has {len(factors)} factors; the model needs {len(plain)}")
    return tuple(frequency / by for frequency, by in zip(plain, factors, strict=True))


def _dynamic(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    """Hunyuan's: a larger base, whatever the length. Pair i of n has a part i / (n - 1) of it."""
    if "alpha" not in scaling:
        raise ConfigError("rope scaling 'dynamic' is supported with an alpha alone")
    alpha, last = float(scaling["alpha"]), len(plain) - 1
    found = (one * alpha ** (-pair / last) for pair, one in enumerate(plain))
    return RopeChoice.always(Rope.plain(tuple(found)))


def _proportional(plain: Frequencies, scaling: Mapping[str, Any], max_position: int) -> RopeChoice:
    """The first pairs of a whole head rotate, and the others stay as they are."""
    pairs = int(float(scaling.get("partial_rotary_factor", 1.0)) * len(plain))
    factor = float(scaling.get("factor", 1.0))
    found = tuple(one / factor for one in plain[:pairs])
    return RopeChoice.always(Rope.plain(found).padded(len(plain)))


# By name, as in `rope_scaling`.
SCALINGS: dict[str, Callable[[Frequencies, Mapping[str, Any], int], RopeChoice]] = {
    "default": _default,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
