"""The user's Triton kernels in which masked lanes reach a reduction with a wrong filler."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.faults.padding import Padding, paddings
from mcp_server.faults.padding_repair import repaired
from mcp_server.model import ModelLocation, ScriptWorkload
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch

_LONGEST = 1 << 20  # bytes of a script


def padded_launches(case: Case) -> dict[str, Launch]:
    """The first launch of each such kernel that can be padded neutrally, by its name on the device."""
    found: dict[str, Launch] = {}
    if case.view is None:
        return found
    for launch in case.view.wrapper.launches:
        kernel = kernel_of(launch, case)
        if kernel is not None and kernel.symbol not in found and repaired(kernel.source, kernel.symbol):
            found[kernel.symbol] = launch
    return found


def kernel_of(launch: Launch, case: Case) -> Kernel | None:
    """The user's own Triton kernel that is launched, with its source."""
    if case.view is None or launch.kind != "user_triton":
        return None
    kernel = case.view.wrapper.kernels.get(launch.kernel)
    return kernel if kernel is not None and kernel.source else None


def padding_lines(kernel: str, case: Case) -> list[tuple[Padding, ModelLocation]]:
    """The reductions with their lines in the user's script, where the kernel stands there."""
    workload = case.workload
    if not isinstance(workload, ScriptWorkload):
        return []
    try:
        if workload.script.stat().st_size > _LONGEST:
            return []
        text = workload.script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [(found, _location(str(workload.script), text, found)) for found in paddings(text, kernel)]


def _location(file: str, text: str, found: Padding) -> ModelLocation:
    return ModelLocation(file=file, line=found.load_line, code=text.splitlines()[found.load_line - 1].strip())
