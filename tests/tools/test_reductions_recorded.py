"""What reductions said on an H200, and what their scripts printed there when run alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.jobs.types import Finished
from mcp_server.tools.reduce.failing import FailureShown, Reduced, of_script
from tests.recorded import RECORDINGS

RECORDED = RECORDINGS / "gpu_tools"

# How the recorded script ended: exit status, or the signal that killed it.
ENDED: dict[str, int | str] = {
    "ranker": "SIGABRT",
    "logarithm": 3,
    "ranker-launch": "SIGABRT",
    "logarithm-launch": 3,
    "user_lookup": "SIGABRT",
}


def finished(output: Path, ended: int | str) -> Finished:
    killed = isinstance(ended, str)
    return Finished(
        ending="signal" if killed else "exit",
        returncode=None if isinstance(ended, str) else ended,
        signal=ended if isinstance(ended, str) else None,
        wall_s=1,
        output=output,
        stdout=output,
        stderr=output,
    )


@pytest.mark.parametrize("name", sorted(ENDED))
def test_the_script_fails_like_the_workload(name: str) -> None:
    """Run alone it printed the same family of error, or the same kind of bad value, as the result says."""
    result = Reduced.model_validate_json((RECORDED / f"reduce-{name}.json").read_text())
    assert result.outcome == "reduced"
    assert result.failure is not None
    shown = of_script(finished(RECORDED / f"reduce-{name}.run.txt", ENDED[name]))
    assert result.failure.same_cause_as(shown)


@pytest.mark.parametrize(
    ("name", "operator", "code"),
    [
        ("ranker", "aten.embedding.default", "rows = self.table(ids)"),
        ("logarithm", "aten.log.default", "h = h.sigmoid() * torch.log(scale)"),
    ],
)
def test_one_operator_is_left_of_five(name: str, operator: str, code: str) -> None:
    """An index assertion and a NaN on the GPU: the operator and the model's line."""
    result = Reduced.model_validate_json((RECORDED / f"reduce-{name}.json").read_text())
    (node,) = result.nodes
    assert (node.operator, node.locations[0].code, result.nodes_before) == (operator, code, 5)
    assert sum(file.bytes for file in result.files) < 1 << 20


def test_an_index_assertion_of_the_gpu_is_its_family() -> None:
    """The script's real output holds the assertion, whatever CUDA says after it."""
    shown = of_script(finished(RECORDED / "reduce-ranker.run.txt", "SIGABRT"))
    assert isinstance(shown, FailureShown)
    assert (shown.kind, shown.family, shown.phase) == ("crash", "device_assert_index", "calling")


def test_an_illegal_access_of_a_users_kernel_is_met_again() -> None:
    """A user's Triton kernel launched alone makes the same illegal access."""
    shown = of_script(finished(RECORDED / "reduce-user_lookup.run.txt", "SIGABRT"))
    assert isinstance(shown, FailureShown)
    assert "illegal memory access" in shown.text


def test_a_healthy_reduction_kernel_writes_the_same_again() -> None:
    """A generated kernel with a block size taken from its grid gave its recorded values, bit for bit."""
    result = Reduced.model_validate_json((RECORDED / "reduce-norms-2.json").read_text())
    assert (result.outcome, result.exit_status, result.failure) == ("replayed", 0, None)
    assert of_script(finished(RECORDED / "reduce-norms-2.run.txt", 0)) is None
