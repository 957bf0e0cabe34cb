"""Watching launches: their values, their journal, their difference from eager, and changed kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mcp_server.diagnosis.causes.custom_op import narrow_launches, padded_launches
from mcp_server.diagnosis.causes.hang import to_be_traced
from mcp_server.diagnosis.causes.index_out_of_bounds import indexing_launches
from mcp_server.diagnosis.components import kernel_of
from mcp_server.diagnosis.observe.static import exported_path
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.value_sources import candidates, index_error
from mcp_server.memory_faults.masked_lanes import repaired
from mcp_server.memory_faults.widening import narrow_pointers, widened
from mcp_server.model import ExportedWorkload, PackageWorkload, TensorSpec
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.tools.compare_with_eager import Pair, compare_pair, updates_of
from mcp_server.tools.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.reduce.variant import Variant, launch_variant
from mcp_server.tools.trace_launches import trace_launches

MOST_LAUNCHES = 10_000  # of one call; the detectors look at all of them


class WatchLaunches:
    """Rebuild the package with launch probes, and look at what every launch reads and writes."""

    name = "watch_launches"
    seconds = 12.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.package is None or "plain" not in case.runs:
            return 0.0
        if says_nonfinite(case):
            return 1.0
        if any(s.producers for c in candidates(case) for s in c.sources):
            return 0.8
        return 0.5 if _writes_by_index(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.kernel_io = await dump_kernel_io(
            context, as_package(case), stop_at_first_bad=True, shown=MOST_LAUNCHES
        )


def _writes_by_index(case: DiagnosisState) -> bool:
    """Launches that drop the error of a bad index, or an index assertion that no generated kernel holds."""
    launches = indexing_launches(case)
    asserted = index_error(case) is not None and not candidates(case)
    return any(not launch.checked for launch in launches) or (asserted and bool(launches))


def says_nonfinite(case: DiagnosisState) -> bool:
    """Whether NaN or infinities were seen: in outputs, or in what the program says."""
    return case.outputs_nonfinite or any(
        "nan" in error.family.tags for _, facts in case.logs for error in facts.errors
    )


def as_package(case: DiagnosisState) -> PackageWorkload:
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


HANG_LIMIT_S = 40.0
SHORTEST_S = 15.0  # to import what the call needs, load the package and reach the launch
REBUILD_S = 25.0  # of what the budget leaves, for the rebuild before it
# Of the rest: on a busy machine a rebuild takes longer, and what is read then comes after the call.
SHARE = 0.6
JOURNAL_BYTES = 4 << 20  # a loop without an end fills what it is given, and only its last turns count


class TraceLaunches:
    """Run the instrumented package, waiting for each launch, and see which one does not come back."""

    name = "trace_launches"
    seconds = 14.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case):
            return 1.0
        plain = case.runs.get("plain")
        if case.call is None or case.package is None or plain is None or case.call.operation == "compile":
            return 0.0
        nothing_located = case.located is not None and case.located.fault is None
        if plain.failure == "timeout" or (nothing_located and plain.failure in ("signal", "exception")):
            return 0.8
        return 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        workload = as_package(case)
        plain = case.runs.get("plain")
        if plain is None or plain.failure == "timeout":
            env = {**workload.env, "AOTI_DEBUG_JOURNAL_LIMIT": str(JOURNAL_BYTES)}
            workload = workload.model_copy(update={"timeout_s": hang_limit(case), "env": env})
        case.trace = await trace_launches(context, workload, sync=True)


def hang_limit(case: DiagnosisState) -> float:
    """Seconds for a call that is known to hang: a trace that the budget cut short would be lost."""
    return max(SHORTEST_S, min(HANG_LIMIT_S, (case.seconds_left - REBUILD_S) * SHARE))


class CompareLaunches:
    """Find the first launch that departs, and tell errors from rounding, TF32, chance and unset memory."""

    name = "compare_with_eager"
    seconds = 20.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.request.get("library") or "plain" not in case.runs:
            return 0.0
        return 0.6 if exported_path(case) is not None and _differs(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        program = exported_path(case)
        assert program is not None and case.call is not None
        pair = Pair(as_package(case), program, updates_of(case.call.request))
        case.with_eager = await compare_pair(context, pair)


def _differs(case: DiagnosisState) -> bool:
    """Whether numbers are wrong somewhere that matters: a difference that nobody minds is not looked into."""
    told = case.interpreted.last("compared") if case.interpreted is not None else None
    if told is not None:
        return not told["equal"] and (case.failed or isinstance(case.workload, ExportedWorkload))
    return case.plain_diverges


MOST = 2  # kernels that are tried


class _TrySource(ABC):
    """Makes the first launch of each kernel that can be rewritten, in the call of the case."""

    name: str
    seconds = 25.0
    alone = True

    @abstractmethod
    def launches(self, case: DiagnosisState) -> Mapping[str, Launch]:
        """The launches to try, by the kernel's name on the device."""

    @abstractmethod
    def change(self, kernel: Kernel) -> Callable[[str], str]:
        """What is done to the text in which the kernel stands."""

    @abstractmethod
    def results(self, case: DiagnosisState) -> dict[str, Variant]:
        """Where the results are kept."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        plain = case.runs.get("plain")
        if case.call is None or case.device != "cuda" or plain is None or case.ended_well:
            return 0.0
        return 0.4 if plain.failure in ("none", "differs") and self.launches(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        for symbol, launch in list(self.launches(case).items())[:MOST]:
            kernel = kernel_of(launch, case)
            assert kernel is not None
            tried = await launch_variant(context, as_package(case), launch.index, self.change(kernel))
            self.results(case)[symbol] = tried


class TryPadding(_TrySource):
    """Whether what the masked lanes hold gets into what the kernel writes: neutral fillers in their place."""

    name = "try_padding"

    def launches(self, case: DiagnosisState) -> Mapping[str, Launch]:
        return padded_launches(case)

    def change(self, kernel: Kernel) -> Callable[[str], str]:
        return partial(_or_as_it_is, lambda source: repaired(source, kernel.symbol))

    def results(self, case: DiagnosisState) -> dict[str, Variant]:
        return case.padding


class TryWider(_TrySource):
    """Whether the kernel writes something else when it computes in float32."""

    name = "try_wider"

    def launches(self, case: DiagnosisState) -> Mapping[str, Launch]:
        return narrow_launches(case)

    def change(self, kernel: Kernel) -> Callable[[str], str]:
        pointers = narrow_pointers(kernel.source)
        return partial(_or_as_it_is, lambda source: widened(source, kernel.symbol, pointers))

    def results(self, case: DiagnosisState) -> dict[str, Variant]:
        return case.widened


def _or_as_it_is(change: Callable[[str], str | None], source: str) -> str:
    return change(source) or source
