"""Which launches of a half-precision model have to run in a wider precision for its outputs to be right."""

from __future__ import annotations

import json

from mcp_server.model import PackageWorkload
from mcp_server.package.view import PackageView
from mcp_server.plurals import counted, listed
from mcp_server.tools.context import Context, gpus_of
from mcp_server.tools.divergence import EveryLaunch, PrecisionLaunch, PrecisionSearch

HALVES = {"float16", "bfloat16"}
SHOWN = 3  # launches that the summary names


async def search_precision(
    context: Context, workload: PackageWorkload, model: PackageView, judged: EveryLaunch, tolerance: float
) -> PrecisionSearch:
    """Search the launches that were judged. A model with wrong kernels is not searched: they come first."""
    if judged.plan is None:
        return PrecisionSearch(summary=f"Precision was not searched: {judged.summary}")
    plan = json.loads(judged.plan.path.read_text())
    dtypes = {held["dtype"] for tensors in plan["stored"].values() for held in tensors.values()}
    if judged.wrong:
        first = ", ".join(str(each.launch) for each in judged.wrong[:SHOWN])
        return PrecisionSearch(
            summary=f"Precision was not searched: launch {first} computes something else, beyond rounding"
        )
    if not dtypes & HALVES:
        return PrecisionSearch(
            summary=f"Precision was not searched: no launch stores half precision ({listed(sorted(dtypes))})"
        )
    request = {
        "plan": judged.plan.path,
        "package": plan["package"],
        "inputs": workload.inputs,
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "extra_imports": workload.extra_imports,
        "factor": tolerance,
    }
    gpus = gpus_of(model.package.device_type, workload.device_index)
    done = await context.worker("precision", request, workload=workload, gpus=gpus)
    found = done.last("precision_found")
    if found is None:
        failed = done.last("failed") or {}
        why = str(failed.get("text", done.finished.ending))[:200]
        return PrecisionSearch(summary=f"Precision was not searched: the call did not come back ({why})")
    context.cost.runs += found["calls"] if not done.finished.reused else 0
    launches = [
        PrecisionLaunch(
            launch=number, kernel=model.wrapper.launches[number].kernel, locations=model.locations(number)
        )
        for number in found["launches"]
    ]
    search = PrecisionSearch(
        summary="",
        launches=launches,
        possible=found["possible"],
        complete=found["complete"],
        calls=found["calls"],
    )
    return search.model_copy(update={"summary": _summary(search, judged)})


def _summary(found: PrecisionSearch, judged: EveryLaunch) -> str:
    """The answer in a sentence."""
    if not found.possible:
        open_ones = (
            f"; {counted(judged.unjudged_count, 'launch')} could not be widened" if judged.unjudged else ""
        )
        return f"The outputs are wrong with every launch in a wider precision, too{open_ones}"
    if not found.launches:
        return "No launch has to run in a wider precision: the outputs are right as they are"
    names = listed([f"{each.launch} ({each.kernel})" for each in found.launches[:SHOWN]])
    more = f" and {len(found.launches) - SHOWN} more" if len(found.launches) > SHOWN else ""
    least = "; each of them is needed" if found.complete else "; the search ended early, fewer may do"
    launches = "launch" if len(found.launches) == 1 else "launches"
    runs = "runs" if len(found.launches) == 1 else "run"
    return f"The outputs are right when {launches} {names}{more} {runs} in a wider precision{least}"
