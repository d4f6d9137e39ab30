"""Plots as SVG with logarithmic axes: lines by size, and bars by group."""

import math
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 100
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
DASHES = ("", "6 4", "2 3")
BAR = 56


def human(value: float) -> str:
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def short(value: float) -> str:
    """Three digits, with commas and without exponents."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Axis:
    """The vertical axis: the decades around all values."""

    def __init__(self, values: list):
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.low, self.high = low, max(high, low + 1)

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def marks(self) -> list:
        return [10.0**power for power in range(self.low, self.high + 1)]


def frame(title: str, unit: str, axis: Axis) -> list:
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15">{escape(title)}</text>',
        f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2})">{escape(unit)}</text>',
    ]
    for mark in axis.marks():
        y = axis.place(mark)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        text = short(mark)
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return out


def legend(out: list, names: list, styles: list) -> None:
    """Below the plot, in two columns."""
    for number, (name, (colour, dash)) in enumerate(zip(names, styles)):
        x = LEFT + 20 + number % 2 * (WIDTH - LEFT) / 2
        y = HEIGHT - 30 + 18 * (number // 2)
        out.append(f'<path d="M{x:.1f} {y - 4}h28" stroke="{colour}" stroke-width="2.5" '
                   f'stroke-dasharray="{dash}"/>')
        out.append(f'<text x="{x + 34:.1f}" y="{y}">{escape(name)}</text>')


def write(path: Path, out: list) -> None:
    path.write_text("\n".join([*out, "</svg>"]) + "\n", encoding="utf-8")


def lines(path: Path, title: str, unit: str, series: dict) -> None:
    """Writes a plot. `series` has a list of (size in bytes, value) for each name. A name is an
    implementation, a comma and a place: the first has the colour, the second the dash.
    """
    points = [point for values in series.values() for point in values]
    if not points:
        return
    xs = sorted({x for x, _ in points})
    axis = Axis([y for _, y in points])

    def x_of(x: float) -> float:
        span = math.log2(xs[-1] / xs[0]) or 1
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(x / xs[0]) / span

    out = frame(title, unit, axis)
    for x in xs:
        out.append(f'<path d="M{x_of(x):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 18}" '
                   f'text-anchor="middle">{human(x)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - BOTTOM + 38}" '
               'text-anchor="middle">bytes of an operation</text>')
    kinds = [name.partition(", ")[::2] for name in series]
    peers, places = (list(dict.fromkeys(kind)) for kind in zip(*kinds))
    styles = [(COLOURS[peers.index(peer) % len(COLOURS)], DASHES[places.index(place) % len(DASHES)])
              for peer, place in kinds]
    for values, (colour, dash) in zip(series.values(), styles):
        way = " ".join(f"{x_of(x):.1f},{axis.place(y):.1f}" for x, y in sorted(values))
        out.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash}"/>')
        out += [f'<circle cx="{x_of(x):.1f}" cy="{axis.place(y):.1f}" r="2.5" fill="{colour}"/>'
                for x, y in values]
    legend(out, list(series), styles)
    write(path, out)


def bars(path: Path, title: str, unit: str, groups: list, names: list) -> None:
    """Writes groups of bars. `groups` has a label and the values by name, for each group."""
    found = [value for _, values in groups for value in values.values()]
    if not found:
        return
    axis = Axis(found)
    out = frame(title, unit, axis)
    wide = (WIDTH - LEFT - RIGHT) / len(groups)
    for number, (label, values) in enumerate(groups):
        middle = LEFT + wide * (number + 0.5)
        out.append(f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 20}" '
                   f'text-anchor="middle">{escape(label)}</text>')
        for place, name in enumerate(names):
            if name not in values:
                continue
            x, y = middle + BAR * (place - len(names) / 2), axis.place(values[name])
            out.append(f'<rect x="{x + 2:.1f}" y="{y:.1f}" width="{BAR - 4}" '
                       f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{COLOURS[place]}"/>')
            out.append(f'<text x="{x + BAR / 2:.1f}" y="{y - 5:.1f}" text-anchor="middle">'
                       f'{short(values[name])}</text>')
    legend(out, names, [(COLOURS[place], "") for place in range(len(names))])
    write(path, out)
