"""The reader against recorded runs of the zoo, on CPUs and on a GPU.

The recorder sat in the dynamic linker: it saw each call that leaves the package's library, with its
arguments, and knew nothing of the wrapper's text.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_server.package.archive import read_constants
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.package.agree import Agreement, compare
from tests.package.summaries import WRAPPERS
from tests.recorded import RECORDINGS

RUNS = sorted((RECORDINGS / "truth").glob("*.json"))


def wrapper_of(run: Path) -> Wrapper:
    kernels = RECORDINGS / "kernels" / f"{run.stem}.cpp"
    kernel_text = kernels.read_text(encoding="utf-8") if kernels.exists() else ""
    return read_wrapper((WRAPPERS / f"{run.stem}.cpp").read_text(encoding="utf-8"), kernel_text)


def recorded_agreement(run: Path) -> Agreement:
    wrapper = wrapper_of(run)
    names = {constant.name: constant.fqn for constant in read_constants(wrapper.text)}
    return compare(wrapper, names, json.loads(run.read_text(encoding="utf-8")))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem)
def test_a_recorded_run_does_what_is_read(run: Path) -> None:
    """Order of launches, tensors behind every argument, shapes, strides, numbers and roles: as read."""
    found = recorded_agreement(run)
    assert found.differences == []
    assert found.launches and found.checked["memory"] >= 3


def test_constants_are_folded_by_launches_of_their_own() -> None:
    """A run begins with the launches of constant folding; what they leave is the folded constant."""
    run = next(run for run in RUNS if run.stem == "folding.torch-2.13-cpu")
    wrapper = wrapper_of(run)
    assert wrapper.folding is not None
    assert [n.kernel for n in wrapper.folding.launches] == [
        "cpp_fused_exp_mul_unsqueeze_0",
        "aoti_torch_cpu_mm_out",
    ]
    called = [call["name"] for call in json.loads(run.read_text())["calls"]]
    assert called == [n.kernel for n in (*wrapper.folding.launches, *wrapper.launches)]
    assert wrapper.folded == {"_FOLDED_CONST_permute": 0}
    behind = Dataflow(wrapper.folding).backward(wrapper.folding.outputs[0])
    assert (behind.launches, sorted(behind.constants)) == ((0, 1), ["other", "scale", "weight"])
