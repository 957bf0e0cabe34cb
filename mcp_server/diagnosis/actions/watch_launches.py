"""The call with every launch watched: the first value that is not finite, or index out of its bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.scatter import indexing_launches
from mcp_server.diagnosis.index_parts import candidates, index_error
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import PackageWorkload, TensorSpec
from mcp_server.steps.context import Context
from mcp_server.steps.dump_kernel_io import dump_kernel_io

NAN_FAMILIES = frozenset({"not_close_nan", "script_says_nan", "nan_assert", "device_assert_nan"})


MOST_LAUNCHES = 10_000  # of one call; the detectors look at all of them


class WatchLaunches:
    """Rebuild the package with launch probes, and look at what every launch reads and writes."""

    name = "watch_launches"
    seconds = 12.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.package is None or "plain" not in case.runs:
            return 0.0
        if says_nonfinite(case):
            return 1.0
        if any(s.producers for c in candidates(case) for s in c.sources):
            return 0.8
        return 0.5 if _writes_by_index(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        case.kernel_io = await dump_kernel_io(
            context, as_package(case), stop_at_first_bad=True, shown=MOST_LAUNCHES
        )


def _writes_by_index(case: Case) -> bool:
    """Launches that drop the error of a bad index, or an index assertion that no generated kernel holds."""
    launches = indexing_launches(case)
    asserted = index_error(case) is not None and not candidates(case)
    return any(not launch.checked for launch in launches) or (asserted and bool(launches))


def says_nonfinite(case: Case) -> bool:
    """Whether NaN or infinities were seen: in outputs, or in what the program says."""
    return case.outputs_nonfinite or any(
        error.family.id in NAN_FAMILIES for _, facts in case.logs for error in facts.errors
    )


def as_package(case: Case) -> PackageWorkload:
    """The case's call as a package workload, for steps that take one."""
    assert case.call is not None and case.call.package is not None
    request, workload = case.call.request, case.workload
    return PackageWorkload(
        package=case.call.package,
        inputs=case.call.inputs or _specs(request.get("inputs")),
        model_name=request.get("model_name", "model"),
        device_index=request.get("device_index", -1),
        extra_imports=[str(name) for name in request.get("extra_imports", ())],
        cwd=workload.cwd if workload else None,
        env=workload.env if workload else {},
        python=workload.python if workload else None,
        timeout_s=min(workload.timeout_s, 300) if workload else 300,
    )


def _specs(inputs: Any) -> list[TensorSpec] | None:
    return [TensorSpec.model_validate(spec) for spec in inputs] if isinstance(inputs, list) else None
