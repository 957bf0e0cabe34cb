"""`dump_kernel_io`: what chosen launches read and wrote, seen by probes."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.package.view import PackageView, view_package
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.kernel_io import (
    Choice,
    KernelIO,
    overview,
)
from mcp_server.tools.probe_backend import Seen, observe
from mcp_server.tools.requests import check_inputs_given
from mcp_server.worker import events

SHOWN = 24


async def dump_kernel_io(
    context: Context,
    workload: PackageWorkload | ExportedWorkload,
    *,
    launches: Sequence[int] = (),
    kernels: Sequence[str] = (),
    buffers: Sequence[str] = (),
    save: bool = False,
    stop_at_first_bad: bool = False,
    shown: int = SHOWN,
) -> KernelIO:
    """Run the call once and look at the chosen launches, by default at all.

    Launch probes see every tensor and need no recompile; an exported program is compiled first, with
    provenance. A call that fails is a result. Raises ProblemError for a wrong choice, missing inputs, and a
    package that cannot be rebuilt.
    """
    check_inputs_given(workload)
    if isinstance(workload, ExportedWorkload):
        workload = await compiled_package(context, workload)
    model = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    chosen = Choice(launches, kernels, buffers).checked(model)
    seen = await observe(context, workload, model, chosen, save=save, stop=stop_at_first_bad)
    return await _result(context, seen, model, chosen, shown)


async def _result(context: Context, seen: Seen, model: PackageView, choice: Choice, shown: int) -> KernelIO:
    # Reads all that was printed or reported: in a thread, for it may be long.
    found = await anyio.to_thread.run_sync(
        overview, seen.launches(), model, choice, seen.run.directory, shown
    )
    returned = seen.run.last(events.Called) is not None
    ended_in = ""
    if not returned and found.last is not None:
        # The launch of which nothing was seen afterwards.
        ended_in = "" if any(a.when == "after" for a in found.last.arguments) else found.last.kernel
    return KernelIO(
        returned=returned,
        stopped=seen.stopped,
        first_bad=found.first_bad,
        last_launch=ended_in,
        launches=found.shown,
        seen=found.count,
        left_out=max(0, found.count - shown),
        notes=seen.notes,
        failure=None if seen.stopped else read_failure(seen.run.finished),
        table=context.artifact(found.table, "table of all launches"),
        json_file=context.artifact(found.json_file, "all launches"),
        log=context.artifact(seen.run.finished.output, "output of the run"),
        cost=context.cost.cost(),
    )
