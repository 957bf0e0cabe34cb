"""The guides followed to the letter: every command and program in them, on a failing example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, ZooPackage, torch_environment
from tests.zoo.names import thorough
from tools.made import MADE

pytestmark = [pytest.mark.slow, thorough]

BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n *```(?P<kind>sh|python)\n(?P<code>.*?)\n *```", re.DOTALL)
SAVED = re.compile(r"Save as `(?P<name>[\w.]+)`:$")


@dataclass(frozen=True)
class Followed:
    """What the commands and programs of a guide printed, in the order of the guide, by their first words."""

    printed: dict[str, str]

    def of(self, start: str) -> str:
        """The output of the one block that starts so."""
        (found,) = (text for code, text in self.printed.items() if code.startswith(start))
        return found


def follow(guide: str, directory: Path) -> Followed:
    """Save what the guide says to save, run everything else, in `directory`."""
    printed: dict[str, str] = {}
    for found in BLOCK.finditer((ROOT / guide).read_text(encoding="utf-8")):
        code = re.sub(r"^   ", "", found["code"], flags=re.MULTILINE)
        saved = SAVED.search(found["before"])
        if saved:
            (directory / saved["name"]).write_text(code)
        else:
            printed[code if found["kind"] == "sh" else f"program {len(printed)}"] = run(
                found["kind"], code, directory
            )
    return Followed(printed)


def run(kind: str, code: str, directory: Path) -> str:
    """One block as a reader would run it: stdout and stderr, whatever the status."""
    argv = ["/bin/sh", "-c", code] if kind == "sh" else [sys.executable, "-W", "ignore", "-c", code]
    env = {
        **torch_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AOTI_DEBUG_STATE": str(directory / "state"),
        "AOTI_DEBUG_CACHE": str(MADE / "instrumented"),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def nan_guide(zoo: ZooPackage, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """A package that makes NaN of its inputs, and that is older than the weights of its program."""
    directory = tmp_path_factory.mktemp("nan-guide")
    package = zoo("logarithm")
    shutil.copy(package, directory / "model.pt2")
    shutil.copy(package.with_name("logarithm.bad-nan.pt"), directory / "batch.pt")
    program = torch.export.load(package.with_name("logarithm.exported.pt2"))
    with torch.no_grad():
        program.state_dict["out.weight"][0] *= 1.5
    torch.export.save(program, directory / "program.pt2")
    return follow("nan-and-wrong-output.md", directory)


def test_the_first_nan_is_found(nan_guide: Followed) -> None:
    """Section 3: launch, element, good inputs, and the line of the model."""
    told = nan_guide.of("aoti-debug dump-kernel-io --package model.pt2 --inputs batch.pt --stop-at-first-bad")
    assert (
        "launch 1, cpp_fused_log_mul_sigmoid_0, wrote nan at [0, 5] to buf1, and its inputs were good" in told
    )
    assert "inputs were good  yes" in told and "torch.log(scale)" in told


def test_the_launch_s_arguments_show_the_cause(nan_guide: Followed) -> None:
    """Section 3: the minimum of what the logarithm reads is the negative value."""
    told = nan_guide.of("aoti-debug dump-kernel-io --package model.pt2 --inputs batch.pt --launches 1")
    assert "seen       1" in told and "-1" in told


def test_the_call_is_steady(nan_guide: Followed) -> None:
    """Section 6: two runs agree, NaN included."""
    told = nan_guide.of("aoti-debug run-deterministic")
    assert re.search(r"outputs differ +no", told), told


def test_the_departure_is_found(nan_guide: Followed) -> None:
    """Section 7: the stale layer, and not the NaN that eager has too."""
    told = nan_guide.of("aoti-debug compare-with-eager")
    assert re.search(r"outcome +differs", told), told
    assert "launch 2, aoti_torch_cpu_addmm_out: buf3 differs from linear_1 in eager mode" in told


def test_eager_has_the_nan_too(nan_guide: Followed) -> None:
    """Section 10: the program in one call."""
    (told,) = (text for code, text in nan_guide.printed.items() if code.startswith("program"))
    assert "nan" in told and "Error" not in told


@pytest.fixture(scope="module")
def shapes_guide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Followed, Path]:
    """The guide brings its own example: an operator whose fake function holds only for the export's batch."""
    directory = tmp_path_factory.mktemp("shapes-guide")
    return follow("inputs-shapes-custom-ops.md", directory), directory


def test_the_example_is_compiled_without_complaint(shapes_guide: tuple[Followed, Path]) -> None:
    """Section 3: export and compile are content."""
    followed, directory = shapes_guide
    assert "Error" not in followed.of("python build.py")
    assert {"model.pt2", "program.pt2", "good.pt", "batch.pt"} <= {path.name for path in directory.iterdir()}


def test_the_operator_is_diagnosed(shapes_guide: tuple[Followed, Path]) -> None:
    """Section 4: category, operator, and both sizes."""
    told = shapes_guide[0].of("aoti-debug diagnose")
    assert "FAULT  custom_op" in told and "torch.ops.demo.thin.default" in told
    assert "promises shape [4, 3]" in told and "returned shape [3, 3]" in told


def test_the_check_alone_names_it(shapes_guide: tuple[Followed, Path]) -> None:
    """Section 4: the input checks of the package compare operators with their fake functions."""
    told = shapes_guide[0].of("aoti-debug run-deterministic")
    assert "expected size 3==4" in told


def test_good_inputs_hide_it(shapes_guide: tuple[Followed, Path]) -> None:
    """Section 5: at the size of the export the package is right."""
    command = "aoti-debug compare-with-eager --package model.pt2 --exported program.pt2"
    told = run("sh", f"{command} --inputs good.pt --extra-imports thin_op.py", shapes_guide[1])
    assert re.search(r"outcome +agrees", told), told


def test_the_range_is_shown(shapes_guide: tuple[Followed, Path]) -> None:
    """Section 6: what the package was compiled for."""
    assert "dim 0: 2 to 64" in shapes_guide[0].of("aoti-debug inspect-package")


def test_eager_and_opcheck_tell_the_sizes(shapes_guide: tuple[Followed, Path]) -> None:
    """Sections 4 and 11: the real sizes, and a mismatch only at a size that is not the export's."""
    eager, opcheck = (text for code, text in shapes_guide[0].printed.items() if code.startswith("program "))
    assert "6 (3, 3)" in eager
    assert "8 SUCCESS" in opcheck
    assert "Shapes torch.Size([3, 3]) and torch.Size([4, 3]) are not equal!" in opcheck
