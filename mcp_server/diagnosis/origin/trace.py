"""The origin of a fault of a package: one run with launch probes, then the walk back."""

from __future__ import annotations

from mcp_server.diagnosis.origin.carriers import is_carrier
from mcp_server.diagnosis.origin.find import Fault, find_origin
from mcp_server.diagnosis.origin.records import Origin
from mcp_server.diagnosis.origin.values import ProbedValues
from mcp_server.model import PackageWorkload
from mcp_server.package.launches import Launch
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import Element, parts
from mcp_server.package.view import PackageView
from mcp_server.tools.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.first_bad import Choice


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
    """The launch where the fault was seen, and those that the walk back may go through.

    It ends at an operator that computes (a matrix product), unless a NaN is followed that came from there.
    """
    through_all = fault.kind == "value" and fault.when == "before"
    launch = view.wrapper.launches[fault.launch]
    names = _checked_tensors(view, fault) if fault.kind == "check" else [fault.buffer] if through_all else ()
    queue = [(name, launch) for name in names or launch.reads]
    found = {launch.index}
    while queue:
        name, reader = queue.pop()
        for step in view.flow_of(reader).last_writers(name, reader.index):
            node = step.node
            if not isinstance(node, Launch) or node.index in found:
                continue
            if through_all or node.kernel in view.wrapper.kernels or is_carrier(node):
                found.add(node.index)
                queue += [(read, node) for read in node.reads]
    return sorted(found)


def _checked_tensors(view: PackageView, fault: Fault) -> list[str]:
    """The variables that a checked index is computed from."""
    launch = view.wrapper.launches[fault.launch]
    check = read_program(view.wrapper.kernels[launch.kernel]).check_at(fault.line)
    if check is None:
        return []
    loaded = {e.parameter for e in parts(check.value, inside_indices=True) if isinstance(e, Element)}
    return [a.target for a in launch.tensors if a.name in loaded and a.target]
