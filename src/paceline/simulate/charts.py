"""Line and point charts as SVG, which a page holds without outside resources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 28, 40
COLOURS = 6  # classes c0 to c5 of the style sheet

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on a length of pixels."""

    least: float
    most: float
    first_px: float
    last_px: float
    logarithmic: bool = False

    @staticmethod
    def of(values: Sequence[float], first_px: float, last_px: float, logarithmic: bool) -> "Axis":
        found = [value for value in values if isfinite(value) and (value > 0 or not logarithmic)]
        most = max(found, default=1.0)
        if logarithmic:
            least = min(found, default=1.0)
            return Axis(least, max(most, 1.001 * least), first_px, last_px, True)
        return Axis(0.0, most if most > 0 else 1.0, first_px, last_px)

    def px(self, value: float) -> float:
        if self.logarithmic:
            value = max(value, self.least)
            share = (log10(value) - log10(self.least)) / (log10(self.most) - log10(self.least))
        else:
            share = (value - self.least) / (self.most - self.least)
        return round(self.first_px + share * (self.last_px - self.first_px), 1)

    @property
    def ticks(self) -> list[float]:
        """Round values, about five."""
        if self.logarithmic:
            low, high = floor(log10(self.least)), floor(log10(self.most)) + 1
            ticks = [10.0**power for power in range(low, high + 1)]
            return [tick for tick in ticks if self.least <= tick <= self.most]
        step = 10.0 ** floor(log10(self.most / 4))
        step *= next(scale for scale in (1, 2, 5, 10) if self.most / (step * scale) <= 5)  # noqa: PLR2004
        return [step * number for number in range(int(self.most / step) + 1)]


def line_chart(
    title: str, x: str, y: str, lines: Mapping[str, Points], logarithmic: bool = False
) -> str:
    """Lines by name; `logarithmic` is of the horizontal axis."""
    across, up = axes(list(lines.values()), logarithmic)
    drawn: list[str] = []
    for place, points in enumerate(lines.values()):
        corners = " ".join(f"{across.px(a)},{up.px(b)}" for a, b in points)
        drawn.append(f'<polyline class="line c{place % COLOURS}" points="{corners}"/>')
    return framed(title, (x, y), (across, up), drawn, list(lines) if len(lines) > 1 else [])


def point_chart(title: str, x: str, y: str, points: Mapping[str, tuple[float, float]]) -> str:
    """Named points."""
    across, up = axes([list(points.values())], False)
    drawn = [
        f'<circle class="dot c{place % COLOURS}" cx="{across.px(a)}" cy="{up.px(b)}" r="5">'
        f"<title>{escape(name)}: {a:g}, {b:g}</title></circle>"
        for place, (name, (a, b)) in enumerate(points.items())
    ]
    return framed(title, (x, y), (across, up), drawn, list(points))


def axes(lines: Sequence[Points], logarithmic: bool) -> tuple[Axis, Axis]:
    values = [point for points in lines for point in points]
    across = Axis.of([a for a, _ in values], LEFT, WIDTH - RIGHT, logarithmic)
    return across, Axis.of([b for _, b in values], HEIGHT - BOTTOM, TOP, False)


def framed(
    title: str,
    labels: tuple[str, str],
    both: tuple[Axis, Axis],
    shapes: Sequence[str],
    names: Sequence[str],
) -> str:
    across, up = both
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>']
    for tick in across.ticks:
        parts.append(f'<path class="grid" d="M{across.px(tick)} {TOP}V{bottom}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{across.px(tick)}" y="{bottom + 14}">'
            f"{tick:g}</text>"
        )
    for tick in up.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up.px(tick)}H{right}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{up.px(tick) + 4}">'
            f"{tick:g}</text>"
        )
    x, y = map(escape, labels)
    parts.append(f'<text class="tick" text-anchor="end" x="{right}" y="{HEIGHT - 8}">{x}</text>')
    parts.append(f'<text class="tick" x="4" y="{TOP - 4}">{y}</text>')
    legend = "".join(
        f'<span class="key"><i class="c{place % COLOURS}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    )
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return f"<figure>{picture}{''.join([*parts, *shapes])}</svg><p>{legend}</p></figure>"
