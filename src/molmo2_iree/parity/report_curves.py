"""Curves on a logarithmic scale as inline SVG: one function, no script; colours come from the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PLOT = 620, 176
LEFT, RIGHT, TOP = 52, 12, 12
FOOT = TOP + PLOT
ROOM_FOR_WORDS, ROOM_FOR_NUMBERS = 92, 26
MOST_LABELS = 30
MOST_DECADES = 12
SHAPES = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True)
class Curve:
    """A value for each place, None where there is none. ``colour`` and ``shape`` count from 0; ``name`` is shown.

    ``over`` are the places over their own limit; the line that is drawn may be that of another curve's element.
    """

    name: str
    colour: int
    shape: int
    values: Sequence[float | None]
    over: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Scale:
    """From values to heights: whole decades from 10^low to 10^high. Zero is drawn at the foot, infinity at the top."""

    low: int
    high: int

    def y(self, value: float) -> float:
        """The height of a value, clipped to the plot: on 10^0 to 10^2, 10 is halfway."""
        if math.isnan(value) or value == math.inf:
            return TOP
        share = (math.log10(value) - self.low) / (self.high - self.low) if value > 0 else 0.0
        return FOOT - min(max(share, 0.0), 1.0) * PLOT


def scale_of(values: Sequence[float]) -> Scale:
    """Whole decades around the positive finite values, at least one, at most twelve: (0.02, 3) gives -2 to 1."""
    logs = [math.log10(value) for value in values if value > 0 and math.isfinite(value)] or [0.0]
    high = math.ceil(max(logs))
    low = max(min(math.floor(min(logs)), high - 1), high - MOST_DECADES)
    return Scale(low, high)


def chart(labels: Sequence[str], curves: Sequence[Curve], allowed: Sequence[float | None], title: str) -> str:
    """An SVG with a curve for each of ``curves`` over ``labels``, and the allowance of each place as a dashed line."""
    drawn = [value for curve in curves for value in curve.values if value is not None]
    scale = scale_of([*drawn, *(limit for limit in allowed if limit is not None)])
    height = FOOT + (ROOM_FOR_NUMBERS if _numbered(labels) else ROOM_FOR_WORDS)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        *_grid(scale),
        *_names(labels),
        *_allowance(allowed, scale, len(labels)),
        *(piece for curve in curves for piece in _curve(curve, labels, allowed, scale)),
        "</svg>",
    ]
    return "".join(parts)


def x_of(place: int, count: int) -> float:
    """The middle of a place's share of the width."""
    return LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / max(count, 1)


def _grid(scale: Scale) -> list[str]:
    step = 1 if scale.high - scale.low <= 7 else 2
    pieces = []
    for power in range(scale.low, scale.high + 1):
        y = scale.y(10.0**power)
        pieces.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if (power - scale.low) % step == 0:
            name = {0: "1", 1: "10", 2: "100"}.get(power, f'10<tspan dy="-5" class="power">{power}</tspan>')
            pieces.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    return pieces


def _numbered(labels: Sequence[str]) -> bool:
    return all(label.isdigit() for label in labels)


def _names(labels: Sequence[str]) -> list[str]:
    every = math.ceil(len(labels) / MOST_LABELS)
    numbers = _numbered(labels)
    pieces: list[str] = []
    for place, label in enumerate(labels):
        if place % every:
            continue
        x = x_of(place, len(labels))
        if numbers:
            pieces.append(f'<text class="tick" x="{x:.1f}" y="{FOOT + 16}" text-anchor="middle">{label}</text>')
        else:
            turn = f'transform="translate({x + 4:.1f} {FOOT + 12}) rotate(-40)"'
            pieces.append(f'<text class="tick" {turn} text-anchor="end">{escape(label)}</text>')
    return pieces


def _allowance(allowed: Sequence[float | None], scale: Scale, count: int) -> list[str]:
    half = (WIDTH - LEFT - RIGHT) / max(count, 1) / 2
    pieces, drawing = [], False
    for place, limit in enumerate(allowed):
        if limit is not None:
            x, y = x_of(place, count), scale.y(limit)
            start = f"V{y:.1f}" if drawing else f"M{x - half:.1f} {y:.1f}"
            pieces.append(f"{start}H{x + half:.1f}")
        drawing = limit is not None
    return [f'<path class="allowance" d="{"".join(pieces)}"/>'] if pieces else []


def _curve(curve: Curve, labels: Sequence[str], allowed: Sequence[float | None], scale: Scale) -> list[str]:
    count, path, pen = len(labels), [], "M"
    marks = []
    for place, value in enumerate(curve.values):
        if value is None:
            pen = "M"
            continue
        x, y = x_of(place, count), scale.y(value)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
        limit = allowed[place] if place < len(allowed) else None
        said = f"{curve.name}, {labels[place]}: {value:.3g}" + (f", allowed {limit:.3g}" if limit is not None else "")
        marks.append(mark(curve.shape, x, y, said, place in curve.over))
    body = f'<path class="curve" d="{"".join(path)}"/>' if path else ""
    return [f'<g class="c{curve.colour}">{body}{"".join(marks)}</g>']


def mark(shape: int, x: float, y: float, said: str = "", over: bool = False) -> str:
    """A point as one of four shapes, with its words when pointed at; a ring around it where it is over its limit."""
    name = SHAPES[shape % len(SHAPES)]
    words = f"<title>{escape(said)}</title>" if said else ""
    ring = f'<circle class="over" cx="{x:.1f}" cy="{y:.1f}" r="6.5"/>' if over else ""
    if name == "circle":
        return f'{ring}<circle cx="{x:.1f}" cy="{y:.1f}" r="3">{words}</circle>'
    outline = {
        "square": f"M{x - 2.8:.1f} {y - 2.8:.1f}h5.6v5.6h-5.6z",
        "diamond": f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
        "triangle": f"M{x:.1f} {y - 3.8:.1f}l3.6 6.4h-7.2z",
    }[name]
    return f'{ring}<path d="{outline}">{words}</path>'
