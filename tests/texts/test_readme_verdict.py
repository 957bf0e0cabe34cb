"""The verdict that the README quotes is what the demo prints."""

from __future__ import annotations

import re
from html import unescape

from tests.test_guides import ROOT

CUT = "…"  # ends a line that was too long for the recording


def test_the_verdict_of_the_readme_is_in_the_recording() -> None:
    """Each line of the README's first block is a line of docs/demo.svg, in the same order."""
    block = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[
        0
    ]
    svg = (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8")
    printed = iter([unescape(line) for line in re.findall(r"<text[^>]*>(.*?)</text>", svg)])
    quoted = [line for line in block.splitlines() if line.strip()]
    assert len(quoted) >= 10 and quoted[1].startswith("FAULT")
    for line in quoted:
        assert any(_same(line, each) for each in printed), line


def _same(quoted: str, printed: str) -> bool:
    if printed.endswith(CUT):
        return quoted.startswith(printed.removesuffix(CUT))
    return quoted.rstrip() == printed.rstrip()
