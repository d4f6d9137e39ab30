"""The examples of docs/python.md and of the notebooks, as a reader runs them."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
OWN = Path(__file__).resolve().parent.parent
Step = tuple[str, str | None]
"""Code, and what it prints if that is shown."""


def of_page() -> list[Step]:
    """The blocks of Python, each with the block of text that follows it."""
    steps: list[Step] = []
    language, lines, is_next = "", list[str](), False
    for line in (OWN / "../../../docs/python.md").read_text().splitlines():
        if line.startswith("```") and not language:
            language, lines = line[3:], []
        elif line == "```":
            text = "\n".join(lines) + "\n"
            if language == "python":
                steps.append((text, None))
            elif language == "text" and is_next:
                steps[-1] = (steps[-1][0], text)
            is_next, language = language == "python", ""
        elif language:
            lines.append(line)
        elif line:
            is_next = False
    return steps


def of_notebook(path: Path) -> list[Step]:
    """The cells of code, each with what it printed when the notebook was saved."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    return [
        ("".join(cell["source"]), "".join(out for one in cell["outputs"] for out in one["text"]))
        for cell in cells
    ]


def run(steps: list[Step]) -> None:
    """Runs the code of all in one module."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (code, expected) in enumerate(steps):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"<step {number}>", "exec", dont_inherit=True), names)
        assert expected is None or printed.getvalue() == expected, code


def needs_a_lab(step: Step) -> bool:
    return "import Lab" in step[0]


def test_the_page_is_true() -> None:
    steps = of_page()
    assert len(steps) > 5 and sum(shown is not None for _, shown in steps) > 4
    run([step for step in steps if not needs_a_lab(step)])


NOTEBOOKS = sorted((OWN / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path) -> None:
    steps = of_notebook(path)
    assert any(shown for _, shown in steps)
    run(steps)
