"""Line and point charts as SVG, which a page holds without outside resources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 440, 190  # about as many pixels on a screen, so that text keeps its size
LEFT, RIGHT, TOP, BOTTOM = 52, 26, 10, 36
LABEL_HEIGHT = 14
FEWEST_TICKS = 3
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

    @property
    def rounded(self) -> "Axis":
        """The axis up to a round value, so that nothing touches its end."""
        step = self.ticks[1]
        return replace(self, most=step * ceil(self.most / step))

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
            for between in ((1,), (1, 2, 5), range(1, 10)):
                every = [scale * 10.0**power for power in range(low, high + 1) for scale in between]
                ticks = [tick for tick in every if self.least <= tick <= self.most]
                if len(ticks) >= FEWEST_TICKS:
                    break
            return ticks
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
    """Points with their names beside them."""
    across, up = axes([list(points.values())], False)
    across = across.rounded
    drawn = [
        f'<circle class="dot c{place % COLOURS}" cx="{across.px(a)}" cy="{up.px(b)}" r="5">'
        f"<title>{escape(name)}: {a:,.6g}, {b:,.6g}</title></circle>"
        for place, (name, (a, b)) in enumerate(points.items())
    ]
    drawn += point_labels({name: (across.px(a), up.px(b)) for name, (a, b) in points.items()})
    return framed(title, (x, y), (across, up), drawn, [])


def point_labels(places: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names towards the middle of the chart, each below the one before it on its side."""
    drawn: list[str] = []
    free = {"end": 0.0, "start": 0.0}
    colours = {name: place % COLOURS for place, name in enumerate(places)}
    for name, (x, y) in sorted(places.items(), key=lambda item: item[1][1]):
        anchor = "end" if x > WIDTH / 2 else "start"
        baseline = max(y + 4, free[anchor])
        free[anchor] = baseline + LABEL_HEIGHT
        beside = x - 10 if anchor == "end" else x + 10
        drawn.append(
            f'<text class="dot c{colours[name]}" text-anchor="{anchor}" x="{beside:g}" '
            f'y="{baseline:g}">{escape(name)}</text>'
        )
    return drawn


def axes(lines: Sequence[Points], logarithmic: bool) -> tuple[Axis, Axis]:
    values = [point for points in lines for point in points]
    across = Axis.of([a for a, _ in values], LEFT, WIDTH - RIGHT, logarithmic)
    return across, Axis.of([b for _, b in values], HEIGHT - BOTTOM, TOP, False).rounded


def framed(
    title: str,
    labels: tuple[str, str],
    both: tuple[Axis, Axis],
    shapes: Sequence[str],
    names: Sequence[str],
) -> str:
    """The shapes between axes; the heading names what the vertical one counts."""
    across, up = both
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts: list[str] = []
    for tick in across.ticks:
        parts.append(f'<path class="grid" d="M{across.px(tick)} {TOP}V{bottom}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{across.px(tick)}" y="{bottom + 14}">'
            f"{tick:,.6g}</text>"
        )
    for tick in up.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up.px(tick)}H{right}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{up.px(tick) + 4}">'
            f"{tick:,.6g}</text>"
        )
    x, y = map(escape, labels)
    parts.append(f'<text class="tick" text-anchor="end" x="{right}" y="{HEIGHT - 6}">{x}</text>')
    legend = "".join(
        f'<span class="key"><i class="c{place % COLOURS}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    )
    unit = f"<span>{y}</span>" if y.lower() != title.lower() else ""
    caption = f"<figcaption>{escape(title)}{unit}{legend}</figcaption>"
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return f"<figure>{caption}{picture}{''.join([*parts, *shapes])}</svg></figure>"
