"""The figures 2.11 to 2.17 of report 000, as tables and plots: gets and puts by size, and atomics
on the own PE, on another one of the host, and on one of another host.

The report has two machines with Ethernet and InfiniBand. Here are one host, and two network
namespaces with a cable between them, over TCP.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import plot

# Sizes of gets and puts.
SIZES = [8, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]


@dataclass
class Place:
    """Where the two PEs are, and what is measured there."""

    name: str
    compared: list
    # For a test, its size and an implementation of the place: its nanoseconds by name.
    measure: Callable


@dataclass
class Figure:
    number: str
    title: str
    test: str

    @property
    def is_throughput(self) -> bool:
        return self.test.endswith("_nbi")

    @property
    def is_atomic(self) -> bool:
        return self.test in ("cas", "fetch_add", "add")


FIGURES = [
    Figure("2.11", "GET latency", "get"),
    Figure("2.12", "GET throughput", "get_nbi"),
    Figure("2.13", "PUT latency", "put"),
    Figure("2.14", "PUT throughput", "put_nbi"),
    Figure("2.15", "compare and swap", "cas"),
    Figure("2.16", "fetch and add", "fetch_add"),
    Figure("2.17", "add", "add"),
]
TIME = "nanoseconds of an operation"
THROUGHPUT = "Gbit/s"


def table(head: str, names: list, rows: list) -> None:
    """Prints rows of a label and the values by name."""
    print(f"{head:<26}" + "".join(f"{name:>26}" for name in names))
    for label, values in rows:
        cells = ["-" if values.get(name) is None else f"{values[name]:,.2f}" for name in names]
        print(f"{label:<26}" + "".join(f"{cell:>26}" for cell in cells), flush=True)


def by_size(figure: Figure, places: list, path: Path) -> None:
    rows = []
    for size in SIZES:
        values = {}
        for place in places:
            for name, ns in place.measure(figure.test, size).items():
                values[f"{name}, {place.name}"] = size * 8 / ns if figure.is_throughput else ns
        rows.append((size, values))
    names = [f"{peer.name}, {place.name}" for place in places for peer in place.compared]
    unit = THROUGHPUT if figure.is_throughput else TIME
    table(f"bytes ({unit})", names, [(plot.human(size), values) for size, values in rows])
    series = {name: [(size, values[name]) for size, values in rows if name in values]
              for name in names}
    plot.lines(path, f"{figure.number}: {figure.title}", unit, series)


def atomic(figure: Figure, places: list, path: Path) -> None:
    names = [peer.name for peer in places[0].compared]
    groups = [("own PE", places[0].measure(f"{figure.test}_self", 8))]
    groups += [(f"other PE, {place.name}", place.measure(figure.test, 8)) for place in places]
    table(f"8 bytes ({TIME})", names, groups)
    plot.bars(path, f"{figure.number}: {figure.title}", TIME, groups, names)


def draw(places: list, directory: Path, only: list) -> None:
    """Measures, prints and draws the figures, or those of some tests."""
    directory.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        if only and figure.test not in only:
            continue
        print(f"\nFigure {figure.number}: {figure.title}")
        path = directory / f"figure-{figure.number}.svg"
        (atomic if figure.is_atomic else by_size)(figure, places, path)
        print(f"written: {path}")
