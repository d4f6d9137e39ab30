"""A lab: it needs root, and namespaces of its own, as there is one lab on a machine."""

from __future__ import annotations

import os

import pytest
from test_pages import needs_a_lab, of_page, run

from weft._command import CommandFailed
from weft.lab import Lab

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_PYTHON_LAB") is None,
    reason="TEST_PYTHON_LAB says that root and namespaces are there",
)


def test_the_page_is_true_of_labs() -> None:
    run([step for step in of_page() if needs_a_lab(step)])


def test_a_lab_comes_up_and_goes_down() -> None:
    with Lab.up(nodes=2) as lab:
        assert len(lab.status()) == 2
        assert lab.run(0, ["cat", "/sys/class/net/weft0/mtu"]).stdout.strip() == "65520"
        assert lab.run(1, ["ping", "-c", "1", "-W", "5", "n0"]).returncode == 0
        lab.cut(0, 1)
        assert "down" in str(lab.links())
        lab.mend(0, 1)
        with pytest.raises(CommandFailed):
            lab.cut(0, 9)
    with pytest.raises(CommandFailed):
        lab.status()
