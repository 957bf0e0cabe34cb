"""The reader against real runs on CUDA of every model of the zoo, user Triton kernels included.

AOTI_DEBUG_GPU_RECORD names a directory that gets what each run called, as JSON, and the wrapper.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_server.package.archive import open_package
from tests.gpu.zoo import make_models
from tests.witness.running import Run, agreement, join, needs_audit, witnessed
from tests.zoo.names import CPU_MODELS

pytestmark = [pytest.mark.gpu, pytest.mark.slow, needs_audit]

NAMES = (*CPU_MODELS, "user_lookup", "user_shift", "user_spread")
TOGETHER = ("bags", "user_shift")


@pytest.fixture(scope="module")
def runs(cuda_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Run, Path]]:
    """Every model, run once on the GPU, and what the run called."""
    directory = tmp_path_factory.mktemp("witness")
    given = os.environ.get("AOTI_DEBUG_CUDA_ZOO")
    zoo = make_models(Path(given) if given else directory / "zoo", NAMES)
    both = directory / "both.pt2"
    join(both, {name: zoo.package(name) for name in TOGETHER})
    runs = [
        Run(both, name, zoo.package(name))
        if name in TOGETHER
        else Run(zoo.package(name), "model", zoo.package(name))
        for name in NAMES
    ]
    told = witnessed(directory, runs)
    for run in runs:
        _record(run, told[run.name])
    return {run.name: (run, told[run.name]) for run in runs}


def _record(run: Run, told: Path) -> None:
    if asked := os.environ.get("AOTI_DEBUG_GPU_RECORD"):
        kept = Path(asked)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(told, kept / told.name)
        (kept / f"{run.name}.cpp").write_text(open_package(run.package, run.model).wrapper_text)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_does_what_was_read(runs: Mapping[str, tuple[Run, Path]], name: str) -> None:
    """Order of launches, grids, tensors behind arguments, shapes, strides, numbers, roles: as read."""
    found = agreement(*runs[name])
    assert found.differences == []
    assert found.launches and found.checked["memory"] >= 3


def test_every_kind_of_fact_is_compared(runs: Mapping[str, tuple[Run, Path]]) -> None:
    """The zoo leaves no comparison unused."""
    checked = [agreement(*run).checked for run in runs.values()]
    kinds = (
        "grid block shared count shape stride dtype offset memory input constant changed number item distinct"
    )
    assert [kind for kind in kinds.split() if not any(c[kind] for c in checked)] == []
