"""`try-fix --as eager`: one launch done in eager mode by the exported program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.diagnosis.try_fix import TriedFix, try_fix
from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import TryArguments
from tests.conftest import ZooPackage
from tests.served import served
from tests.worker.support import context_in
from tests.wrong_launches.support import call_of, kernels_with

pytestmark = pytest.mark.slow

Wrong = Callable[[str], Path]


def tried(directory: Path, package: Path, launch: int, **asked: object) -> TriedFix:
    program = package.with_name(f"{package.stem}.exported.pt2")
    given = {"package": str(package), "launch": launch, "exported": str(program), "how": "eager"}
    fix = TryArguments.model_validate({**given, **asked})
    return served(try_fix, context_in(directory), call_of(package), fix)


def test_the_wrong_launch_is_told_from_a_right_one(wrong: Wrong, tmp_path: Path) -> None:
    """What eager mode returns is expected without being asked for; the command tries it again."""
    package = wrong("one")
    first, second, *_ = kernels_with(package, "mul_tanh")
    found = tried(tmp_path / "second", package, second)
    assert found.outcome == "fixed", found.summary
    assert f"--launch {second} --as eager --exported" in found.command
    assert tried(tmp_path / "first", package, first).outcome == "same"


def test_what_cannot_be_done_in_eager_mode_says_why(wrong: Wrong, zoo: ZooPackage, tmp_path: Path) -> None:
    """No such launch, one in a branch, and a program for another way."""
    with pytest.raises(ProblemError, match="no such launch"):
        tried(tmp_path, wrong("one"), 99)
    with pytest.raises(ProblemError, match="it is in a branch or a loop"):
        tried(tmp_path, zoo("branch"), 1)
    with pytest.raises(ProblemError, match="for a launch in eager mode"):
        tried(tmp_path, wrong("one"), 1, how="skip")
