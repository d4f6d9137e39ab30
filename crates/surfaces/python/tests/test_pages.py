"""The examples of docs/python.md and of the notebooks, as a reader runs them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

OWN = Path(__file__).resolve().parent.parent
Step = tuple[str, str | None]
"""Code, and what it prints if that is shown."""


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: what stands behind the fence, and the text."""
    text = (OWN / "../../../docs" / page).read_text()
    return re.findall(r"^```(.+)\n((?:(?!```).*\n)*)```$", text, re.MULTILINE)


def of_page() -> list[Step]:
    """The blocks of Python, each with the block of text behind it, which it prints."""
    steps: list[Step] = []
    for language, text in blocks("python.md"):
        if language == "python":
            steps.append((text, None))
        elif language == "text":
            steps[-1] = (steps[-1][0], text)
    return steps


def of_book() -> list[tuple[str, str]]:
    """The names and texts of the programs of the book. A test of the book runs them."""
    return [
        (language.split()[1].removesuffix(".py"), text)
        for language, text in blocks("book/python.md")
        if language.startswith("python ")
    ]


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
    """The test of labs runs these."""
    return "import Lab" in step[0]


def test_the_page_is_true() -> None:
    pytest.importorskip("numpy")
    steps = of_page()
    assert len(steps) > 5 and sum(shown is not None for _, shown in steps) > 4
    run([step for step in steps if not needs_a_lab(step)])


NOTEBOOKS = sorted((OWN / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path) -> None:
    pytest.importorskip("numpy")
    steps = of_notebook(path)
    assert any(shown for _, shown in steps)
    run(steps)
