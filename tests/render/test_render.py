"""Results as text: gold files for the layouts, and nothing that harms a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server import brief
from mcp_server.model import Verdict
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


def test_what_was_done_is_shown_only_on_request() -> None:
    """A check and why it was chosen come with `verbose`."""
    chosen = "look_at_indices (gain 0.80, about 6 s; open: hang, input_mismatch)"
    found = Verdict(outcome="inconclusive", summary="x", decisions=[chosen, "stopped during run"])
    assert "look" not in as_text(found) and f"1. {chosen}" in as_text(found, verbose=True)


if __name__ == "__main__":
    for name in (*SAMPLES, VERBOSE):
        (GOLD / f"{name}.txt").write_text(printed(name), encoding="utf-8")
