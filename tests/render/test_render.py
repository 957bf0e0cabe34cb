"""Results as text: gold files for the layouts, and nothing that harms a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from mcp_server.model import Verdict
from mcp_server.render import as_text, rendered
from tests.render.samples import SAMPLES, VERDICT

GOLD = Path(__file__).with_name("gold")


@pytest.mark.parametrize("name", SAMPLES)
def test_layouts(name: str) -> None:
    """Each layout prints what its gold file holds; `python -m tests.render.test_render` writes them anew."""
    assert as_text(SAMPLES[name]) == (GOLD / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_narrow_terminal_is_respected(name: str) -> None:
    """On a terminal no line is wider than the terminal."""
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=True, color_system=None)
    for part in rendered(SAMPLES[name]):
        console.print(part)
    assert max(len(line) for line in out.getvalue().splitlines()) <= 60


def test_text_from_outside_is_data() -> None:
    """Control characters of a log are replaced and markup in it is not read."""
    text = as_text(VERDICT)
    assert "\x1b" not in text
    assert "[red]" in text


def test_figures_of_the_planner_are_shown_only_on_request() -> None:
    """A check has its name in words; why it was chosen comes with `verbose`."""
    chosen = "look_at_indices (gain 0.80, about 6 s; open: hang, input_mismatch)"
    found = Verdict(outcome="inconclusive", summary="x", decisions=[chosen, "stopped during run"])
    shown = as_text(found)
    assert "1. look at indices\n" in shown and "2. stopped during run" in shown and "gain" not in shown
    assert chosen in as_text(found, verbose=True)


if __name__ == "__main__":
    for name, sample in SAMPLES.items():
        (GOLD / f"{name}.txt").write_text(as_text(sample), encoding="utf-8")
