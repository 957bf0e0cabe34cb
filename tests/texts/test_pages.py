"""Pages that are made from tables of the code, and the site."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mcp_server.evidence.families import FAMILIES
from tests.texts.test_links import ROOT, anchors


@pytest.mark.parametrize("tool", ["flag_table.py", "pages.py"])
def test_generated_pages_are_current(tool: str) -> None:
    """The tool would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_family_has_an_anchor() -> None:
    """`docs/errors.md#FAMILY` is a heading for each family."""
    assert {family.id for family in FAMILIES} <= anchors(ROOT / "docs" / "errors.md")
