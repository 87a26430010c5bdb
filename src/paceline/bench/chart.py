"""A chart as SVG: axes with round numbers, dots and lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 36, 44
COLOURS = ("#0b6e99", "#c2571a", "#4b7f3a", "#7a4b94")
TICKS = 5
ROUND = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together; joined by a line, or as dots."""

    name: str
    points: Sequence[Point]
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Both axes begin at 0, except an x axis of powers of ten."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False

    def svg(self, top: int) -> str:
        """Its elements, `top` pixels below the upper edge."""
        points = [point for series in self.series for point in series.points]
        across = self._across([x for x, _ in points])
        up = Axis(0.0, *reach([y for _, y in points]))
        parts = [label(LEFT, 18, self.title, size=15, weight="bold")]
        parts += grid(across, up)
        parts += [label((LEFT + WIDTH) / 2, HEIGHT - 6, self.x, anchor="middle")]
        parts += [label(8, TOP - 8, self.y, size=11)]
        for number, series in enumerate(self.series):
            colour = COLOURS[number % len(COLOURS)]
            placed = [(x_pixel(across, x), y_pixel(up, y)) for x, y in series.points]
            parts += dots(placed, colour) if series.dots else line(placed, colour)
            place = WIDTH - RIGHT - 130 * (len(self.series) - number)
            parts += [label(place, 18, series.name, colour=colour)]
        return f'<g transform="translate(0 {top})">{"".join(parts)}</g>'

    def _across(self, values: Sequence[float]) -> "Axis":
        if not self.log_x:
            return Axis(0.0, *reach(values))
        positive = [value for value in values if value > 0] or [1.0]
        low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
        ticks = [10.0**power for power in range(low, max(high, low + 1) + 1)]
        return Axis(ticks[0], ticks, ticks[-1], log=True)


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, with numbers at `ticks`."""

    low: float
    ticks: Sequence[float]
    high: float
    log: bool = False

    def pixel(self, value: float, near: float, far: float) -> float:
        """Where a value lies between two edges."""
        if self.log:
            part = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return near + part * (far - near)


def reach(values: Sequence[float]) -> tuple[list[float], float]:
    """Round numbers from 0 on that reach beyond the largest value, and the last of them."""
    most = max(values, default=0.0)
    if most <= 0:
        most = 1.0
    power = 10.0 ** floor(log10(most / TICKS))
    step = next(one * power for one in ROUND if one * power * TICKS >= most)
    count = ceil(most / step)
    return [step * number for number in range(count + 1)], step * count


def x_pixel(axis: Axis, value: float) -> float:
    return axis.pixel(value, LEFT, WIDTH - RIGHT)


def y_pixel(axis: Axis, value: float) -> float:
    return axis.pixel(value, HEIGHT - BOTTOM, TOP)


def grid(across: Axis, up: Axis) -> list[str]:
    parts: list[str] = []
    for tick in up.ticks:
        y = y_pixel(up, tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(label(LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    for tick in across.ticks:
        x = x_pixel(across, tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(label(x, HEIGHT - BOTTOM + 16, f"{tick:g}", anchor="middle"))
    return parts


def dots(points: Sequence[Point], colour: str) -> list[str]:
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in points]


def line(points: Sequence[Point], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']


def label(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "normal",
    colour: str = "#333",
) -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def page(charts: Sequence[Chart]) -> str:
    """Charts one below the other."""
    height = HEIGHT * len(charts)
    drawn = "".join(chart.svg(HEIGHT * number) for number, chart in enumerate(charts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="white"/>{drawn}</svg>\n'
    )
