"""`reduce`: a small script that fails in the same way as a workload, or replays one of its launches."""

from __future__ import annotations

from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.steps.context import Context
from mcp_server.steps.reduce.graph import reduce_graph
from mcp_server.steps.reduce.launch import reduce_launch
from mcp_server.steps.reduce.records import Reduced


async def reduce(
    context: Context,
    workload: PackageWorkload | ExportedWorkload | ScriptWorkload,
    *,
    scope: Literal["graph", "launch"] = "graph",
    launch: int | None = None,
    budget_s: float = 300,
) -> Reduced:
    """`graph`: few operators of an exported program; `launch`: one launch of a package with its values.

    Raises ProblemError as `reduce_graph` and `reduce_launch` do, and for a package without its program.
    """
    if scope == "launch":
        return await reduce_launch(context, workload, launch)
    if launch is not None:
        raise ProblemError("a launch is chosen", value=launch, allowed="with scope launch")
    if isinstance(workload, PackageWorkload):
        raise ProblemError(
            "a package does not hold the graph that it was compiled from",
            value=str(workload.package),
            allowed="exported=the program it was compiled from, script, or scope launch",
        )
    return await reduce_graph(context, workload, budget_s=budget_s)
