"""A line plot as SVG, with logarithmic axes: what the figures of a thesis show."""

import math
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 60
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def human(value: float) -> str:
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def decades(low: float, high: float) -> list:
    return [10.0**power for power in range(math.floor(math.log10(low)),
                                           math.ceil(math.log10(high)) + 1)]


def lines(path: Path, title: str, unit: str, series: dict) -> None:
    """Writes a plot. `series` has for each name a list of (size in bytes, value)."""
    points = [point for values in series.values() for point in values]
    if not points:
        return
    xs = sorted({x for x, _ in points})
    marks = decades(min(y for _, y in points), max(y for _, y in points))
    if len(marks) == 1:
        marks.append(marks[0] * 10)

    def x_of(x: float) -> float:
        span = math.log2(xs[-1] / xs[0]) or 1
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(x / xs[0]) / span

    def y_of(y: float) -> float:
        share = math.log10(y / marks[0]) / math.log10(marks[-1] / marks[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15">{escape(title)}</text>',
        f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {HEIGHT / 2})">{escape(unit)}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">bytes</text>',
    ]
    for mark in marks:
        y = y_of(mark)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for x in xs[:: max(1, len(xs) // 9)]:
        place = x_of(x)
        out.append(f'<path d="M{place:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" '
                   f'text-anchor="middle">{human(x)}</text>')
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        way = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(values))
        out.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 14 + 18 * number
        out.append(f'<path d="M{LEFT + 12} {y - 4}h24" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{LEFT + 42}" y="{y}">{escape(name)}</text>')
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n")
