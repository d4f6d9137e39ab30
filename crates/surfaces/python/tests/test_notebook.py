"""The notebook runs from top to bottom, and shows what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("numpy")

NOTEBOOK = Path(os.environ.get("WEFT_NOTEBOOK", Path(__file__).parents[1] / "weft.ipynb"))


def test_the_notebook_runs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    said = [cell.get("outputs") for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    compared = 0
    for cell, before in zip(notebook.cells, said, strict=True):
        if cell.cell_type != "code" or "changes" in cell.metadata.get("tags", []):
            continue
        texts = [
            [output.get("text") or output["data"]["text/plain"] for output in outputs]
            for outputs in (before, cell.outputs)
        ]
        assert texts[0] == texts[1], cell.source
        compared += 1
    assert compared >= 4
