"""What the node daemon serves and counts.

    from weft import metrics

    print(metrics.status()["endpoints"])
    for sample in metrics.scrape("http://127.0.0.1:9400/metrics"):
        print(sample.name, sample.labels, sample.value)

`weft.Endpoint.counters` has the counts of one endpoint. The names are in docs/metrics.md.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._command import CommandFailed, run_json

__all__ = ["CommandFailed", "Sample", "parse", "scrape", "status"]

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^\"}]|\"(?:\\.|[^\"\\])*\")*)\})?"
    r"\s+(?P<value>\S+)(?:\s.*)?"
)
_LABEL = re.compile(r"([A-Za-z_]\w*)=\"((?:\\.|[^\"\\])*)\"")
_BYTES_MAX = 64 << 20


class Sample(NamedTuple):
    """One number of a metric."""

    name: str
    labels: dict[str, str]
    value: float


def status(node: str | None = None) -> dict[str, Any]:
    """What `weft status --json` prints: the daemon, its programs, endpoints and connections.

    Raises `CommandFailed` if no daemon answers.
    """
    arguments = ["status"] if node is None else ["status", f"--node={node}"]
    status = run_json(arguments)
    if not isinstance(status, dict):
        raise CommandFailed("weft status printed no object")
    return status


def scrape(url: str, timeout: float = 5.0) -> list[Sample]:
    """The metrics of a daemon that was started with `--metrics-listen`."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address of the form http://HOST:PORT/metrics")
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        text = answer.read(_BYTES_MAX).decode()
    return list(parse(text))


def parse(text: str) -> Iterator[Sample]:
    """The samples in a text of the formats of Prometheus and OpenMetrics."""
    # Other ends of lines of Python's may be in a label.
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ValueError(f"no sample: {line!r}")
        labels = {
            name: _unescaped(value) for name, value in _LABEL.findall(found["labels"] or "")
        }
        yield Sample(found["name"], labels, float(found["value"]))


def _unescaped(value: str) -> str:
    escapes = {"n": "\n"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), value)
