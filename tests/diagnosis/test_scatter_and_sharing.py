"""Launches that write where an index says, and one tensor given for several inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import index_out_of_bounds
from mcp_server.diagnosis.indices import indexing_launches
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import Artifact, Cost
from mcp_server.tools.kernel_io import ArgumentValues, KernelIO, LaunchValues
from tests.conftest import ZooPackage
from tests.diagnosis.support import package_case
from tests.zoo.names import thorough


def watched(case: DiagnosisState, largest: float) -> DiagnosisState:
    """The case after its scatter launch was watched, with an index tensor of 0 to `largest`."""
    launch = next(x for x in indexing_launches(case) if not x.checked)
    index = next(a.target for a in launch.tensors if a.target == "arg1_1" or a.kind == "input")
    values = [
        ArgumentValues(name="buf0", when="before", role="read_write", dtype="float32", shape=[12]),
        ArgumentValues(name=index or "", when="before", role="read", dtype="int64", min=0, max=largest),
    ]
    seen = LaunchValues(kernel=launch.kernel, sequence=0, launch=launch.index, arguments=values)
    log = Artifact(uri="", path=Path("output.log"), bytes=0, what="log")
    case.kernel_io = KernelIO(returned=True, launches=[seen], log=log, cost=Cost())
    return case


@thorough
@pytest.mark.slow
def test_a_dropped_scatter_error_is_found(zoo: ZooPackage) -> None:
    """An index beyond the written tensor, in a launch whose error is thrown away, is index_out_of_bounds."""
    (found,) = index_out_of_bounds.detect_beyond(watched(package_case(zoo("scatter")), 300))
    assert found.category == "index_out_of_bounds" and "thrown away" in found.summary
    assert found.guilty.kind == "input" and found.guilty.input_index is not None


@pytest.mark.slow
def test_an_index_inside_is_no_fault(zoo: ZooPackage) -> None:
    """The last element that exists may be written."""
    assert list(index_out_of_bounds.detect_beyond(watched(package_case(zoo("scatter")), 11))) == []
