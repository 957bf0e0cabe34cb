"""A launch done in eager mode by the program: `try-fix --as eager`, and `repair`, which keeps it so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.try_fix import TriedFix, try_fix
from mcp_server.errors import ProblemError
from mcp_server.model import NextStep
from mcp_server.operations.arguments import TryArguments
from mcp_server.operations.table import command_line
from mcp_server.tools.repair import Repaired, repair
from tests.conftest import ZooPackage
from tests.probes.test_host import compile_host
from tests.served import served
from tests.worker.support import context_in
from tests.wrong_launches.support import call_of, kernels_with
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

Wrong = Callable[[str], Path]


def tried(directory: Path, package: Path, launch: int, **asked: object) -> TriedFix:
    program = package.with_name(f"{package.stem}.exported.pt2")
    given = {"package": str(package), "launch": launch, "exported": str(program), "how": "eager"}
    fix = TryArguments.model_validate({**given, **asked})
    return served(try_fix, context_in(directory), call_of(package), fix)


@thorough
def test_the_wrong_launch_is_told_from_a_right_one(wrong: Wrong, tmp_path: Path) -> None:
    """What eager mode returns is expected without being asked for; the command tries it again."""
    package = wrong("one")
    first, second, *_ = kernels_with(package, "mul_tanh")
    found = tried(tmp_path / "second", package, second)
    assert found.outcome == "fixed", found.summary
    assert f"--launch {second} --as eager --exported" in found.command
    assert tried(tmp_path / "first", package, first).outcome == "same"


@thorough
def test_what_cannot_be_done_in_eager_mode_says_why(wrong: Wrong, zoo: ZooPackage, tmp_path: Path) -> None:
    """No such launch, one in a branch, and a program for another way."""
    with pytest.raises(ProblemError, match="no such launch"):
        tried(tmp_path, wrong("one"), 99)
    with pytest.raises(ProblemError, match="it is in a branch or a loop"):
        tried(tmp_path, zoo("branch"), 1)
    with pytest.raises(ProblemError, match="for a launch in eager mode"):
        tried(tmp_path, wrong("one"), 1, how="skip")


def repaired(directory: Path, package: Path, *launches: int) -> Repaired:
    program, directory = package.with_name(f"{package.stem}.exported.pt2"), directory.absolute()
    output = directory / "new.pt2"
    context = context_in(directory / "job")
    return served(repair, context, call_of(package), program, launches, output)


CALL = "import sys, torch; run = torch._inductor.aoti_load_package(sys.argv[1]); "
CALL += "torch.save(run(torch.load(sys.argv[2])), sys.argv[3])"


@thorough
def test_a_repaired_package_is_right_in_python_and_in_a_host_without_it(wrong: Wrong, tmp_path: Path) -> None:
    """Both wrong launches by default; processes that know nothing of this project get eager's numbers."""
    package = wrong("two")
    found = repaired(tmp_path, package)
    _, *others = kernels_with(package, "mul_tanh")
    assert found.outcome == "agrees" and set(found.launches) - set(others[1:2]) and len(found.launches) == 2
    assert found.operators == ["aten::tanh", "aten::mul.Scalar"] * 2 and found.price.after > 0
    x = torch.arange(128.0).reshape(8, 16) / 64 - 1
    torch.save(x, tmp_path / "x.pt")
    want = torch.export.load(package.with_name("two.exported.pt2")).module()(x)
    for one, same in ((found.package, True), (package, False)):
        argv = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            CALL,
            str(one),
            str(tmp_path / "x.pt"),
            str(tmp_path / "y.pt"),
        ]
        subprocess.run(argv, check=True, cwd=tmp_path, env={})
        assert torch.allclose(torch.load(tmp_path / "y.pt"), want) is same
    argv = [str(compile_host()), str(found.package), "floats"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\n")
    assert torch.allclose(torch.tensor([float(line) for line in said[:128]]).reshape(8, 16), want)


@thorough
def test_what_cannot_be_repaired_says_why(wrong: Wrong, zoo: ZooPackage, tmp_path: Path) -> None:
    """Nothing wrong, no such launch, a launch that makes its own output, and a file that is there already."""
    with pytest.raises(ProblemError, match="nothing to repair"):
        repaired(tmp_path, wrong("clean"))
    with pytest.raises(ProblemError, match="no such launch"):
        repaired(tmp_path, wrong("clean"), 99)
    with pytest.raises(ProblemError, match="makes the tensors that it returns"):
        repaired(tmp_path, zoo("attention"), 2)
    (tmp_path / "new.pt2").write_text("mine")
    with pytest.raises(ProblemError, match="there already"):
        repaired(tmp_path, wrong("one"), 3)
    assert (tmp_path / "new.pt2").read_text() == "mine"


def test_the_next_step_is_the_command() -> None:
    """`try_fix` with `output` is `repair` on the command line."""
    arguments = {"package": "m.pt2", "exported": "p.pt2", "how": "eager", "launch": 3, "output": "n.pt2"}
    step = NextStep(why="", tool="try_fix", arguments=arguments)
    assert command_line(step) == "aoti-debug repair m.pt2 --exported p.pt2 --launch 3 --output n.pt2"
