"""Results as text: gold files for the layouts, and nothing that harms a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server import brief
from mcp_server.render import as_text
from tests.render.samples import SAMPLES, VERDICT

GOLD = Path(__file__).with_name("gold")


VERBOSE = "verdict_verbose"


def printed(name: str) -> str:
    """What a sample prints: the verdict also in full."""
    return as_text(VERDICT, verbose=True) if name == VERBOSE else as_text(SAMPLES[name])


@pytest.mark.parametrize("name", [*SAMPLES, VERBOSE])
def test_layouts(name: str) -> None:
    """Each layout prints what its gold file holds; `python -m tests.render.test_render` writes them anew."""
    assert printed(name) == (GOLD / f"{name}.txt").read_text(encoding="utf-8")


def test_text_from_outside_is_data() -> None:
    """Control characters of a log are replaced and markup in it is not read."""
    for text in (as_text(VERDICT), as_text(VERDICT, verbose=True), brief.text(VERDICT)):
        assert "\x1b" not in text
        assert "[red]" in text


if __name__ == "__main__":
    for name in (*SAMPLES, VERBOSE):
        (GOLD / f"{name}.txt").write_text(printed(name), encoding="utf-8")
