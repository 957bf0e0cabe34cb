"""Results as text: gold files for the layouts, and nothing that harms a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from mcp_server import brief
from mcp_server.model import Component, Verdict
from mcp_server.render import as_text, rendered
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


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_narrow_terminal_is_respected(name: str, verbose: bool) -> None:
    """On a terminal no line is wider than the terminal."""
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=True, color_system=None)
    for part in rendered(SAMPLES[name], verbose):
        console.print(part)
    assert max(len(line) for line in out.getvalue().splitlines()) <= 60


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


def test_a_long_name_is_shortened_in_its_middle() -> None:
    """Of a kernel that fuses many operators both ends are shown; with `verbose` all of it."""
    kernel = "cpp_fused__softmax_arange_bmm_div_log_lt_mean_mul_squeeze_sum_transpose_unsqueeze_1"
    party = Component(kind="kernel", name=kernel, launch_index=3)
    found = VERDICT.model_copy(update={"summary": f"{kernel} wrote nan.", "crashing": party})
    assert kernel not in as_text(found)
    assert as_text(found).count("cpp_fused__softmax…") == 2 and kernel in as_text(found, verbose=True)


if __name__ == "__main__":
    for name in (*SAMPLES, VERBOSE):
        (GOLD / f"{name}.txt").write_text(printed(name), encoding="utf-8")
