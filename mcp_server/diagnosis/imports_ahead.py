"""Imports of torch that a diagnosis begins before the first request needs them."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.model import PackageWorkload
from mcp_server.steps.context import Context
from mcp_server.steps.fault_methods import ONE_THREAD

# What reading an exported program imports beyond torch, most of the time that it takes (1.3 s of processor
# time beside 0.3 s for the rest, torch 2.13). A package alone is not read with them.
EXPORTED = ("torch._inductor.codecache", "torch._export.serde.serialize")


def import_ahead(case: Case, context: Context) -> None:
    """One import for the requests of most actions, then one with the threads of `CheckedRun`.

    OpenMP reads its limits when torch is imported, so that the two cannot be one.
    """
    workload = case.workload
    if workload is None:
        return
    given = case.surroundings
    modules = () if isinstance(workload, PackageWorkload) else EXPORTED
    context.expect(**given, modules=modules)
    context.expect(**{**given, "env": {**workload.env, **ONE_THREAD}})
