"""What is different where kernels run behind the program: on recorded packages of torch 2.11 for CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import illegal_memory_access, log_text
from mcp_server.diagnosis.causes.illegal_memory_access import died
from mcp_server.diagnosis.components import launch_component
from mcp_server.diagnosis.observe.launches import LocateFault
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.jobs.types import Finished
from mcp_server.logs.log import read_log
from mcp_server.model import Category, PackageWorkload
from tests.diagnosis.support import LOG, capture, phase, run
from tests.memory_faults.support import recorded

# An operator of the user's own that calls torch after an earlier kernel failed: the frames are what pybind11
# adds, the rest is as recorded on an H200.
IN_OPERATOR = """RuntimeError: CUDA error: {status}

At:
  /srv/ops.py(7): halve_rows
  /venv/lib/python3.12/site-packages/torch/_library/custom_ops.py(502): wrapped_fn
"""
ABORTED = """torch.AcceleratorError: CUDA error: {status}
Fatal Python error: Aborted

Current thread 0x00007f18fadc2b80 (most recent call first):
  File "/srv/ops.py", line 7 in halve_rows
  File "/venv/lib/python3.12/site-packages/torch/_library/custom_ops.py", line 502 in wrapped_fn
"""
INVALIDATED = "torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture"
ON_DEVICE = """Traceback (most recent call last):
  File "/srv/heat_map.py", line 36, in show
    return grid.numpy() * 4
TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor
"""
ILLEGAL, ASSERTED = "an illegal memory access was encountered", "device-side assert triggered"


def cuda_case(name: str, directory: Path) -> DiagnosisState:
    """A call of that recorded package."""
    case = DiagnosisState(PackageWorkload(package=directory, inputs=Path("inputs.pt")))
    case.call = CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt"))
    case.package = recorded(name, directory).package
    return case


@pytest.mark.parametrize("status", [ILLEGAL, ASSERTED, "out of memory"])
def test_an_operator_that_meets_an_error_of_the_device_has_not_made_it(status: str) -> None:
    """The operator is not the first to suspect, though it raised; it is for an error that torch states."""
    root = read_log(IN_OPERATOR.format(status=status).splitlines()).root
    assert root is not None and root.family.id != "operator_raised" and root.candidates[0] != "custom_op"
    stated = IN_OPERATOR.format(status="x").replace("CUDA error: x", "shape '[3]' is invalid for input")
    found = read_log(stated.splitlines()).root
    assert found is not None and found.family.id == "operator_raised"


@pytest.mark.parametrize("status", [ILLEGAL, ASSERTED])
def test_the_stack_of_an_abort_over_a_kernel_says_nothing(tmp_path: Path, status: str) -> None:
    """The process died where it next called CUDA: no operator is accused, and the access is looked for."""
    case = cuda_case("plugin", tmp_path)
    text = ABORTED.format(status=status).splitlines()
    case.runs["plain"] = RunSeen(
        "plain", Finished("signal", None, "SIGABRT", 1.0, LOG, LOG, LOG), read_log(text)
    )
    assert died(case) == [] and list(illegal_memory_access.detect_died_inside(case)) == []
    assert LocateFault().gain(case, []) == 1


def test_a_kernel_of_the_user_goes_by_its_own_name(tmp_path: Path) -> None:
    """The wrapper numbers the variants of a Triton kernel; the user wrote it without a number."""
    case = cuda_case("user_shift", tmp_path)
    assert case.view is not None
    launch = next(launch for launch in case.view.wrapper.launches if launch.kind == "user_triton")
    assert launch_component(launch.index, launch.kernel, case).name == launch.symbol != launch.kernel


@pytest.mark.parametrize(
    ("seen", "open_too"),
    [({}, False), ({"streams": True}, True), ({"notice": "a CUDA graph was being captured"}, True)],
)
def test_one_thread_with_streams_or_graphs_may_race(seen: dict[str, object], open_too: bool) -> None:
    """Concurrency is ruled out by calls of one thread only where there is one stream and no graph."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(1, load=1, thread=1, thread_name="MainThread", **seen)])
    case.runs["script"] = run("script", INVALIDATED)
    found: set[Category] = {hypothesis.category for hypothesis in log_text.detect_from_log(case)}
    assert "illegal_memory_access" in found and ("concurrency" in found) == open_too


def test_a_tensor_that_numpy_cannot_read_is_the_scripts_affair() -> None:
    """It lies on the device, whatever the package computed: a log alone settles that."""
    case = DiagnosisState(None)
    case.log, case.log_source = read_log(ON_DEVICE.splitlines()), "run.log"
    (found,) = log_text.detect_from_log(case)
    assert (found.category, found.weak) == ("script_error", False)


MEMORY = "Exception in aoti_torch: CUDA out of memory. Tried to allocate 2.29 GiB."
RAISED = [
    "Traceback (most recent call last):",
    '  File "/srv/a.py", line 9, in <module>',
    "RuntimeError: run_func_",
]


@pytest.mark.parametrize(
    ("after", "fatal"),
    [
        (["split 300000 after RuntimeError", "server stopped"], False),
        (
            ["frame #2: <unknown function> + 0x445e2 (0x7f)", "Error: aoti_torch_empty_strided(2)"],
            True,
        ),
        (RAISED, True),
        ([], True),
    ],
)
def test_an_error_that_the_program_handled_ended_nothing(after: list[str], fatal: bool) -> None:
    """Up to torch 2.12 every error is printed where it arises; a program that answers it goes on printing."""
    assert read_log([MEMORY, *after]).fatal == fatal
