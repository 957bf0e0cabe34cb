"""The same on a GPU, where the kernels are Triton's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import torch_environment
from tests.gpu.conftest import HAS_CUDA
from tests.wrong_launches.support import judged
from tests.wrong_launches.test_in_eager import verdict
from tests.wrong_launches.test_try_fix import repaired

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="session")
def on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages, compiled for CUDA."""
    asked = [sys.executable, "-W", "ignore", "-c", HAS_CUDA]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no torch with a CUDA device")
    directory = tmp_path_factory.mktemp("wrong-launches")
    for name in ("clean", "two", "nan"):
        words = [sys.executable, "-m", "tests.wrong_launches.models", name, str(directory), "cuda"]
        subprocess.run(words, check=True, env=torch_environment())
    return directory


def test_all_wrong_triton_kernels_are_listed(on_cuda: Path, tmp_path: Path) -> None:
    """Two of four layers, and none of a healthy package."""
    assert [each.difference.node for each in judged(tmp_path / "two", on_cuda / "two.pt2").wrong] == [
        "mul",
        "mul_2",
    ]
    assert judged(tmp_path / "clean", on_cuda / "clean.pt2").wrong == []


@pytest.mark.parametrize("name", ["two", "nan"])
def test_a_wrong_triton_kernel_is_proven_in_eager_mode(on_cuda: Path, tmp_path: Path, name: str) -> None:
    """The failure goes with the launch done in eager mode, and comes back without."""
    found = verdict(tmp_path, on_cuda / f"{name}.pt2")
    assert found.confidence == "proven" and found.intervention is not None, found.summary
    assert "eager mode" in found.intervention.what


def test_repaired_triton_kernels_agree_with_the_program(on_cuda: Path, tmp_path: Path) -> None:
    """Both wrong kernels are calls of operators on the stream of the call."""
    found = repaired(tmp_path, on_cuda / "two.pt2")
    assert found.outcome == "agrees" and len(found.launches) == 2
