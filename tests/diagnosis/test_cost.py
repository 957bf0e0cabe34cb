"""Slow calls and loads: a change that wins time is proven once it was timed, and likely before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.cost.signals import signals_of
from mcp_server.package.view import view_package
from tests.conftest import ROOT, ZooPackage
from tests.support.command import CLI, environment
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow


class Table(torch.nn.Module):  # type: ignore[misc]
    """Multiplies two tables that depend on its weights only."""

    weights: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
        self.register_buffer("weights", torch.randn(900, 900))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.weights.sin() @ self.weights.cos()
        result: torch.Tensor = self.linear(x) + product[0, :256]
        return result


def diagnosed(tmp_path: Path, *words: str) -> dict[str, Any]:
    argv = [*CLI, "diagnose", *words, "--json"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=400
    )
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


@thorough
@pytest.mark.filterwarnings("ignore")  # of the compile
def test_work_on_constants_is_proven_by_a_build_that_folds_them(tmp_path: Path) -> None:
    """It is compiled and timed again with the exported program that was given."""
    package, exported, inputs = (tmp_path / name for name in ("m.pt2", "m.ep.pt2", "in.pt"))
    given = (torch.randn(2, 256),)
    program = torch.export.export(Table().eval(), given)
    torch.export.save(program, exported)
    torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    torch.save(given, inputs)
    words = (str(package), "--inputs", str(inputs), "--symptom", "slow", "--budget-s", "24")
    proven = diagnosed(tmp_path, *words, "--exported", str(exported))
    assert (proven["category"], proven["confidence"]) == ("cost", "proven")
    assert proven["guilty"]["kind"] == "kernel" and "cos_sin" in proven["guilty"]["name"]
    assert "use_runtime_constant_folding" in proven["fix"]["after"]
    assert "gave the same outputs" in proven["confirmed"]["after"]


@thorough
def test_a_load_is_timed_with_and_without_the_test_of_the_processor(zoo: ZooPackage, tmp_path: Path) -> None:
    """A load without failure has times; whether the variable wins any depends on the machine."""
    found = diagnosed(tmp_path, str(zoo("ranker")), "--symptom", "slow-load")
    assert found["outcome"] in ("fault", "no_fault") and "TORCHINDUCTOR_VEC_ISA_OK=1" in found["summary"]
    assert (found["outcome"] == "fault") == (found["confidence"] == "proven")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("plugin", {"decomposed tanh", "custom operators"}),
        pytest.param("select", {"sorting"}, marks=thorough),
        ("ranker", set()),
        pytest.param("norms", set(), marks=thorough),
    ],
)
def test_a_package_shows_what_may_cost_time(zoo: ZooPackage, model: str, expected: set[str]) -> None:
    """Signals are read from the package; one without such work shows none."""
    view = view_package(zoo(model), "model")
    assert {found.signal.name for found in signals_of(view)} == expected


class Unrolled(torch.nn.Module):  # type: ignore[misc]
    """A loop that export unrolls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (x * 0.5).sin()
        return x


@pytest.mark.parametrize(("budget", "ends"), [("30", False), pytest.param("300", True, marks=thorough)])
def test_a_build_names_the_line_of_an_unrolled_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, ends: bool
) -> None:
    """The line with most nodes is told with its passes, also of a build that does not end in time."""
    exported, compiler = tmp_path / "m.ep.pt2", tmp_path / "g++"
    torch.export.save(torch.export.export(Unrolled(), (torch.randn(8),)), exported)
    if not ends:
        compiler.write_text("#!/bin/sh\nexec sleep 600\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
    found = diagnosed(tmp_path, "--exported", str(exported), "--symptom", "slow-build", "--budget-s", budget)
    assert found["category"] == "cost", found
    assert any("the C++ compiler: " in each["fact"] for each in found["evidence"]) is ends
    assert any("100% of nodes, 20 passes" in each["fact"] for each in found["evidence"])
    assert ends or ("did not end within 30 s" in found["summary"] and found["confidence"] == "likely")


def test_a_build_needs_its_program(zoo: ZooPackage, tmp_path: Path) -> None:
    """A package alone cannot be built again; the error says what to give."""
    found = diagnosed(tmp_path, str(zoo("ranker")), "--symptom", "slow-build")
    assert "timing a build needs the exported program" in json.dumps(found)


def test_what_is_slow_needs_inputs(zoo: ZooPackage, tmp_path: Path) -> None:
    """Nothing is timed without a call."""
    found = diagnosed(tmp_path, str(zoo("ranker")), "--symptom", "slow")
    assert "timing a call needs inputs" in json.dumps(found)
