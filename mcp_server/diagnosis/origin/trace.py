"""The origin of a fault of a package: one run with launch probes, then the walk back."""

from __future__ import annotations

from mcp_server.diagnosis.origin.find import Fault, find_origin
from mcp_server.diagnosis.origin.records import Origin
from mcp_server.diagnosis.origin.values import ProbedValues
from mcp_server.model import PackageWorkload
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import Element, parts
from mcp_server.package.view import PackageView
from mcp_server.steps.context import Context
from mcp_server.steps.dump_kernel_io import dump_kernel_io
from mcp_server.steps.kernel_choice import Choice


async def trace_origin(
    context: Context, workload: PackageWorkload, view: PackageView, fault: Fault
) -> Origin | None:
    """Run the failing call once, keep what the launches behind the fault read and wrote, and find the origin.

    None when it cannot be told. Raises ProblemError when the package cannot be instrumented.
    """
    launches = behind(view, fault)
    seen = await dump_kernel_io(
        context, workload, Choice(launches=launches), save=True, backend="probes", shown=len(launches) * 64
    )
    return find_origin(view, fault, ProbedValues(seen.launches))


def behind(view: PackageView, fault: Fault) -> list[int]:
    """The launches that the faulty value may come from, and the one where it was seen."""
    launch = view.wrapper.launches[fault.launch]
    flow = view.flow_of(launch)
    names = [fault.buffer] if fault.kind == "value" and fault.when == "before" else []
    if fault.kind == "check":
        names = _checked_tensors(view, fault)
    found = {fault.launch}
    for name in names or [argument.target for argument in launch.tensors if argument.role != "written"]:
        found |= set(flow.backward(name, launch.index).launches) if name else set()
    return sorted(found)


def _checked_tensors(view: PackageView, fault: Fault) -> list[str]:
    """The variables that a checked index is computed from."""
    launch = view.wrapper.launches[fault.launch]
    check = read_program(view.wrapper.kernels[launch.kernel]).check_at(fault.line)
    if check is None:
        return []
    loaded = {e.parameter for e in parts(check.value, inside_indices=True) if isinstance(e, Element)}
    return [a.target for a in launch.tensors if a.name in loaded and a.target]
