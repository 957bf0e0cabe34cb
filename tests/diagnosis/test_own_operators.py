"""Exceptions that operators of the user's own raise, and requests that memory does not suffice for."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes import custom_op, log_text, out_of_memory
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.logs.log import read_log
from mcp_server.package.mismatch import GivenTensor
from tests.conftest import ZooPackage
from tests.diagnosis.support import failing, package_case, run

CALLER = "  /app/serve.py(55): main"
OPERATOR = "  /app/ops.py(15): spacing"
TORCH = "  /venv/lib/python3.11/site-packages/torch/_library/custom_ops.py(502): wrapped_fn"
SHIM = (
    "Error: aoti_torch_proxy_executor_call_function(proxy_executor, 0, 0) API call failed at /c/a.cpp, line 9"
)


def text(*frames: str) -> str:
    """What a call prints whose operator raised through these frames, innermost first."""
    return "\n".join([SHIM, "RuntimeError: ValueError: no peak", "", "At:", *frames])


def test_an_exception_of_an_operator_names_it(zoo: ZooPackage) -> None:
    """The node gives the operator, the frames give its line; the call that fails is a second source."""
    case = failing(package_case(zoo("plugin")), text(OPERATOR, TORCH, CALLER))
    (found,) = custom_op.detect_operator_error(case)
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "custom_op",
        "op",
        "aotizoo::halve_rows",
    )
    assert (found.guilty.model_locations[0].file, found.guilty.model_locations[0].line) == ("/app/ops.py", 15)
    assert confidence(found, case) == "likely"


def test_an_exception_that_nothing_checked_is_that_of_the_only_operator(zoo: ZooPackage) -> None:
    """Up to torch 2.12 the node is not named: an exception is a line of the log, and the package goes on."""
    lines = [
        "[E1121 06:44:01.0 shim_common.cpp:1258] Exception in aoti_torch: ValueError: no peak",
        *("", "At:", OPERATOR, TORCH, CALLER),
        "[E1121 06:44:01.0 shim_common.cpp:271] Exception in aoti_torch: Cannot access data pointer",
        "Error: aoti_torch_get_data_ptr(handle_.get(), &result) API call failed at /c/utils.h, line 117",
        "RuntimeError: run_func_( container_handle_ ) API call failed at /r.cpp, line 145",
    ]
    (found,) = custom_op.detect_operator_error(failing(package_case(zoo("plugin")), "\n".join(lines)))
    assert found.guilty.name == "aotizoo::halve_rows"


def test_an_exception_from_below_an_operator_is_not_its_own(zoo: ZooPackage) -> None:
    """Where the program's frames only call the operator, torch raised, and no function of the user's."""
    case = failing(package_case(zoo("plugin")), text(TORCH, CALLER))
    assert not list(custom_op.detect_operator_error(case))


def test_a_log_alone_names_the_operators_function() -> None:
    """Without a package the function and its line are the party."""
    case = DiagnosisState(None)
    case.log, case.log_source = read_log(text(OPERATOR, TORCH, CALLER).splitlines()), "crash.log"
    first = next(iter(log_text.detect_from_log(case)))
    assert (first.category, first.guilty.kind, first.guilty.name) == ("custom_op", "op", "spacing")
    assert first.guilty.model_locations[0].line == 15


REQUEST = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."


@pytest.mark.parametrize(("rows", "factor", "count"), [(3_000, 1, 1), (3_000, 3, 0)])
def test_a_request_is_found_among_the_buffers(zoo: ZooPackage, rows: int, factor: int, count: int) -> None:
    """The buffer whose size in this call is the request, its launch, and the dimensions it grows with."""
    case = package_case(zoo("ranker"), GivenTensor("int64", (rows, 6)))
    assert case.view is not None
    hidden = rows * 6 * 32 * 4
    case.runs["plain"] = run("plain", REQUEST.format(hidden * factor))
    found = list(out_of_memory.detect_allocation(case))
    assert len(found) == count
    for hypothesis in found:
        assert (hypothesis.category, hypothesis.guilty.kind) == ("out_of_memory", "kernel")
        launch = case.view.wrapper.launches[hypothesis.guilty.launch_index or 0]
        assert hypothesis.guilty.name == launch.kernel
        assert "dimension 0 of input 0" in hypothesis.summary
