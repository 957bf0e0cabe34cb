"""PyTorch's own procedure, as a whole: compile with the value printer, run, read what it printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.tools.compile_with_flags import compile_with_flags
from mcp_server.tools.explain_error import explain_error
from mcp_server.tools.run_deterministic import run_deterministic
from tests.conftest import ZooPackage
from tests.served import served
from tests.worker.support import context_in

FLAG = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
FILTER = "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT"


@pytest.mark.slow
def test_the_printer_names_the_kernel_that_made_the_nan(zoo: ZooPackage, tmp_path: Path) -> None:
    """Level 2 for one kernel: the log of the run names its buffer, and explain-error says so."""
    exported = zoo("logarithm").with_name("logarithm.exported.pt2")
    flags = {FLAG: "2", FILTER: "cpp_fused_log_mul_sigmoid_0"}
    made = served(compile_with_flags, context_in(tmp_path / "c"), ExportedWorkload(exported=exported), flags)
    assert made.package is not None
    workload = PackageWorkload(package=made.package.path, inputs=exported.with_name("logarithm.bad-nan.pt"))
    ran = served(run_deterministic, context_in(tmp_path / "r"), workload, repeats=1)
    log = Path(ran.runs[0].log.path)
    said = served(explain_error, context_in(tmp_path / "e"), log=log)
    assert any("buf1 after launch of cpp_fused_log_mul_sigmoid_0 is the first" in note for note in said.notes)
