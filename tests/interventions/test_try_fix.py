"""`try_fix` on real packages, as the command runs it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.support.command import typed
from tests.worker.support import saved

pytestmark = pytest.mark.slow


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return typed(*map(str, words))


def command(package: Path, given: str, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and result of the command."""
    done = run("try-fix", package, "--inputs", package.with_name(given), *words, "--json")
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


def test_the_command_that_is_printed_does_the_same_again(masked: Path) -> None:
    """Two words after --replace, and quotes where the shell needs them."""
    kernel = json.loads(run("inspect-package", masked, "--launch", "0", "--json").stdout)
    name = next(fact["kernel"] for fact in kernel["facts"] if fact["kind_of_fact"] == "launch")
    words = ("--kernel", name, "--replace", "-std::numeric_limits<float>::infinity()", "-1e30f")
    _, first = command(masked, "masked.nan.pt", *words)
    again = run(*shlex.split(first["command"])[1:], "--json")
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
    assert result["outcome"] == "fixed" and "unexpected outputs" in result["before"]
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
        (["--constants", "{weights}"], "the package has none of these constants"),
    ],
)
def test_a_change_that_cannot_be_made_is_an_error(
    masked: Path, tmp_path: Path, words: list[str], what: str
) -> None:
    """Exit status 2 and what is allowed; nothing of the user's is touched."""
    weights, before = saved(tmp_path, "weights.pt", {"tabel.weight": torch.zeros(2)}), masked.read_bytes()
    asked = [word.format(weights=weights) for word in words]
    done = run("try-fix", masked, "--inputs", masked.with_name("masked.nan.pt"), *asked)
    assert done.returncode == 2 and what in done.stderr
    assert masked.read_bytes() == before
