"""Wrong numbers that nothing reports, told by an expectation alone: no program, no source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.model import PackageWorkload
from tests.conftest import CACHE, ROOT, compiled_once, torch_environment
from tests.support.tools import of_call, tool
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="session",
    params=[pytest.param("cpu", marks=thorough), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def silent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """silent.pt2, with its calls and what is right for them next to it."""
    if request.param == "cpu":
        return compiled_once(CACHE.parent / "symptom" / "silent.pt2", "tests.symptom.silent")
    folder = tmp_path_factory.mktemp("silent")
    # A process of its own: CUDA cannot be used in a fork of one that has initialised it.
    argv = [sys.executable, "-W", "ignore", "-m", "tests.symptom.silent", "cuda", str(folder)]
    done = subprocess.run(
        argv, env=torch_environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "silent.pt2"


def beside(package: Path, name: str) -> Path:
    return package.with_name(f"silent.{name}.pt")


def test_a_product_that_does_not_fit_is_proven_by_64_bits(silent: Path, tmp_path: Path) -> None:
    """It is taken modulo a size, so that every index is within its bound."""
    found = of_call(tmp_path, silent, "far", Symptom(expect=beside(silent, "far-right")))
    assert (found.outcome, found.category, found.confidence) == ("fault", "wrong_output", "proven")
    assert "args[0] * 46021" in found.summary and "32 bits" in found.summary
    assert found.fix is not None and ".long()" in found.fix.text and found.confirmed is not None


@thorough
def test_a_check_command_takes_part_in_the_trials(silent: Path, tmp_path: Path) -> None:
    """The command refuses what 32 bits give, and takes what 64 bits do."""
    script = tmp_path / "check.py"
    right = str(beside(silent, "far-right"))
    script.write_text(
        "import sys, torch\n"
        f"given, right = (torch.load(each, weights_only=True)[0] for each in (sys.argv[1], {right!r}))\n"
        "sys.exit(not torch.allclose(given.cpu(), right.cpu(), atol=1e-4))\n"
    )
    found = of_call(tmp_path, silent, "far", Symptom(check=(sys.executable, str(script))))
    assert (found.category, found.confidence) == ("wrong_output", "proven")
    assert found.intervention is not None and "check command" in found.intervention.before


@thorough
def test_a_product_that_fits_is_cleared(silent: Path, tmp_path: Path) -> None:
    """The same kernel in 64 bits gives the same numbers: what is wrong is something else."""
    found = of_call(tmp_path, silent, "inputs", Symptom(expect=beside(silent, "meant-right")))
    assert (found.category, found.confidence) == ("wrong_output", "possible")
    assert any("32 bits" in cleared.hypothesis for cleared in found.bystanders)


def test_the_constant_that_differs_is_found_among_those_given(silent: Path, tmp_path: Path) -> None:
    """All of them are given; the one that the package has permuted is enough."""
    workload = PackageWorkload(package=silent, inputs=beside(silent, "inputs"))
    given = {"constants": beside(silent, "weights"), "expect": beside(silent, "meant-right")}
    found = tool("try_fix", tmp_path, workload, **given)
    assert found.outcome == "fixed" and found.enough_constants == ["head.weight"]
    assert "Of the constants, head.weight is enough." in found.summary
