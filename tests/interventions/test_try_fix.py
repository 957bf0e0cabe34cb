"""`try_fix` on real packages, as the command runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.worker.support import saved
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

COMMAND = str(Path(sys.executable).with_name("aoti-debug"))


def command(package: Path, given: str | Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and result of the command."""
    argv = [COMMAND, "try-fix", str(package)]
    inputs = str(package.with_name(given) if isinstance(given, str) else given)
    done = subprocess.run(
        [*argv, "--inputs", inputs, *words, "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def test_a_clamp_says_which_element_was_enough_and_what_else_it_changes(masked: Path) -> None:
    """One of 30 ids is outside the table; a clamp that changes others too is harmful."""
    status, right = command(masked, "masked.index.pt", "--change", "args[0]: clamp 0 11")
    assert status == 0 and right["outcome"] == "fixed" and right["outputs"][0]["innocent"] == 0
    assert right["enough"]["needed"] == 1
    assert right["enough"]["elements"] == [{"where": "args[0][4, 1]", "before": "12", "after": "11"}]
    assert right["code_after"] == "args[0] = args[0].clamp(min=0, max=11)"
    _, wrong = command(masked, "masked.index.pt", "--change", "args[0]: clamp 0 5")
    assert wrong["outcome"] == "harmful" and wrong["side_effects"]
    assert (wrong["enough"]["needed"], wrong["enough"]["changed"]) == (1, wrong["inputs"][0]["changed"])


@thorough
def test_constants_that_the_package_does_not_have_are_refused(masked: Path, tmp_path: Path) -> None:
    """A mistyped name changes nothing, and so clears nothing."""
    torch.save({"tabel.weight": torch.zeros(2)}, tmp_path / "weights.pt")
    argv = [COMMAND, "try-fix", str(masked), "--inputs", str(masked.with_name("masked.index.pt"))]
    more = ["--constants", str(tmp_path / "weights.pt")]
    done = subprocess.run([*argv, *more], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the package has none of these constants" in done.stderr and "tabel.weight" in done.stderr


def test_the_command_that_is_printed_does_the_same_again(masked: Path) -> None:
    """Two words after --replace, and quotes where the shell needs them."""
    kernel = json.loads(
        subprocess.run(
            [COMMAND, "inspect-package", str(masked), "--launch", "0", "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    name = next(fact["kernel"] for fact in kernel["facts"] if fact["kind_of_fact"] == "launch")
    words = ("--kernel", name, "--replace", "-std::numeric_limits<float>::infinity()", "-1e30f")
    _, first = command(masked, "masked.nan.pt", *words)
    again = subprocess.run(
        f"{COMMAND}{first['command'].removeprefix('aoti-debug')} --json",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert first["outcome"] == json.loads(again.stdout)["outcome"] == "fixed"


def test_a_wrong_dtype_is_cast_and_an_expectation_decides(masked: Path, tmp_path: Path) -> None:
    """The package reads float64 as float32 without a word: only an expectation shows that, and the cast."""
    x = torch.load(masked.with_name("masked.inputs.pt"), weights_only=True)
    right = tmp_path / "right.pt"
    sys.path.insert(0, str(ROOT))
    loader = torch._C._aoti.AOTIModelPackageLoader(str(masked), "model", False, 1, -1)
    torch.save(loader.run(x), right)
    cast = ("--change", "args[2]: cast float32", "--expect", str(right))
    _, result = command(masked, "masked.dtype.pt", *cast)
    assert result["outcome"] == "fixed" and "other outputs than expected" in result["before"]
    _, silent = command(masked, "masked.dtype.pt", *cast[:2])
    assert silent["outcome"] in ("no_failure", "fixed")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--change", "args[9]: clamp 0 1"], "no such input"),
        (["--change", "args[0]: set 1 at 9,9"], "no such element"),
        (["--change", "args[0]: squash"], "unknown change"),
        (["--kernel", "cpp_x"], "a kernel is edited by its name and a replacement"),
        (["--kernel", "cpp_x", "--replace", "a", "b"], "no such kernel"),
        (["--launch", "77"], "no such launch"),
        (["--launch", "0", "--as", "eager"], "exported program"),
        ([], "nothing to change"),
    ],
)
def test_a_change_that_cannot_be_made_is_an_error(masked: Path, words: list[str], what: str) -> None:
    """Exit status 2 and what is allowed; nothing of the user's is touched."""
    before = masked.read_bytes()
    argv = [COMMAND, "try-fix", str(masked)]
    given = ["--inputs", str(masked.with_name("masked.nan.pt"))]
    done = subprocess.run([*argv, *given, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and what in done.stderr
    assert masked.read_bytes() == before


@thorough
def test_an_expectation_of_another_shape_is_an_error(masked: Path, tmp_path: Path) -> None:
    """It names the output and both shapes."""
    short = saved(tmp_path, "short.pt", [torch.zeros(2, 2)])
    argv = [COMMAND, "try-fix", str(masked), "--change", "args[0]: contiguous"]
    given = ["--inputs", str(masked.with_name("masked.nan.pt")), "--expect", str(short)]
    done = subprocess.run([*argv, *given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "[6, 16] instead of [2, 2]" in done.stderr
