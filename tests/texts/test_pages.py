"""Pages that are made from tables of the code, and the site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.logs.families import FAMILIES
from mcp_server.tools.context import Context
from mcp_server.tools.explain_error import explain_error
from tests.test_guides import ROOT
from tests.texts.test_links import anchors


@pytest.mark.parametrize("tool", ["flag_table.py", "pages.py"])
def test_generated_pages_are_current(tool: str) -> None:
    """The tool would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_explained_error_names_its_section(tmp_path: Path, anyio_backend: str) -> None:
    """`explain_error` gives the page and the anchor of the family."""
    context = Context(tmp_path, Path(sys.executable))
    found = await explain_error(context, text="RuntimeError: Constant not found: enc.1.co.bias")
    page, _, anchor = found.page.partition("#")
    assert anchor == found.family and anchor in anchors(ROOT / page)


def test_every_family_has_an_anchor() -> None:
    """`docs/errors.md#FAMILY` is a heading for each family."""
    assert {family.id for family in FAMILIES} <= anchors(ROOT / "docs" / "errors.md")
