"""The methods of `locate_fault`: each runs the call once in its own way and returns what it saw."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from mcp_server.errors import ProblemError
from mcp_server.evidence.sanitizer import SanitizerReport
from mcp_server.faults.access import Access
from mcp_server.instrument.types import Options
from mcp_server.steps import core_dump, cpu_fault, memcheck
from mcp_server.steps.context import Context
from mcp_server.steps.cuda_tools import find_tool
from mcp_server.steps.fault_run import FaultRun, Target
from mcp_server.steps.launch_sites import launch_sites
from mcp_server.steps.memcheck import SanitizerTool
from mcp_server.steps.run_deterministic import CACHING_OFF

Tool = Literal[
    "memcheck", "initcheck", "racecheck", "synccheck", "core_dump", "sync", "asan", "ubsan", "native"
]


@dataclass(frozen=True)
class Found:
    """What one run showed; `errors` is the tool's own count."""

    run: FaultRun
    accesses: list[Access] = field(default_factory=list)
    errors: int | None = None
    what: str = ""


@dataclass(frozen=True)
class Method:
    """How a tool is run, and how the package is rebuilt for it."""

    run: Callable[[Context, Target], Awaitable[Found]]
    options: Options = Options()  # noqa: RUF009 - frozen


async def run_sanitizer(context: Context, target: Target, tool: SanitizerTool) -> Found:
    """One run under compute-sanitizer. The report decides; its exit code does not."""
    program = _tool("compute-sanitizer", context, target)
    directory = context.fresh(tool)
    run = await target.run(
        context,
        tool,
        env=memcheck.sanitizer_environment(),
        unset=memcheck.left_out(target.workload.env),
        prefix=memcheck.sanitizer_prefix(program, tool),
        directory=directory,
    )
    checked = memcheck.read_report(run.done.finished.output)
    _check_attached(checked.report, run)
    accesses = memcheck.accesses_of(checked, tool, target.view)
    if target.rebuilt is None:
        sites = await launch_sites(context, target.view, accesses)
        run = FaultRun(run.done, replace(run.evidence, sites=sites))
    return Found(run, accesses, checked.report.errors, f"{checked.report.errors} errors counted")


def _check_attached(report: SanitizerReport, run: FaultRun) -> None:
    """Raises `ProblemError` when the program did not run, or ran unchecked: silence then says nothing."""
    if report.sites or report.errors is not None:
        return
    unchecked = any("No attachable process" in message for message in report.messages)
    if unchecked or not run.done.events:
        raise ProblemError("compute-sanitizer did not check the program: " + "; ".join(report.messages[:3]))


async def run_core_dump(context: Context, target: Target) -> Found:
    """One run that leaves a light core dump, read by cuda-gdb where there is one."""
    directory = context.fresh("core-dump")
    env = {**core_dump.core_environment(directory), **CACHING_OFF}
    run = await target.run(context, "core-dump", env=env, directory=directory)
    output = run.done.finished.output
    debugger = find_tool("cuda-gdb", context.python_for(target.workload), target.workload.env)
    access = await core_dump.read_core(context, directory, output, debugger)
    asserted = cpu_fault.printed_assertions(output)
    found = [*asserted, *([access] if access is not None and not asserted else [])]
    return Found(run, found, None, "read by cuda-gdb" if debugger else "no cuda-gdb: the driver's log only")


async def run_sync(context: Context, target: Target) -> Found:
    """No NVIDIA tool at all: the journal of launches that are waited for."""
    await target.settled()
    if target.rebuilt is None:
        raise ProblemError(f"it needs probes: {target.why_not}")
    run = await target.run(context, "sync", env=dict(CACHING_OFF))
    asserted = cpu_fault.printed_assertions(run.done.finished.output)
    if asserted:
        return Found(run, asserted)
    journal = run.evidence.journal
    ending = journal.ending if journal is not None else None
    if ending is None or ending.how not in ("fault", "died") or ending.launch is None:
        return Found(run, [], None, f"the journal ends: {ending.how if ending else 'empty'}")
    text = ending.launch.fault or "the process ended during the launch"
    return Found(run, [Access("sync", "invalid_access", text)])


async def run_asan(context: Context, target: Target) -> Found:
    """The C++ kernels with AddressSanitizer, index asserts taken out, each weight in memory of its own."""
    return await _sanitized(context, target, "asan")


async def run_ubsan(context: Context, target: Target) -> Found:
    """The C++ kernels with UndefinedBehaviorSanitizer."""
    return await _sanitized(context, target, "ubsan")


async def _sanitized(context: Context, target: Target, name: str) -> Found:
    await target.settled()
    if target.rebuilt is None:
        raise ProblemError(f"the package cannot be rebuilt: {target.why_not}")
    run = await target.run(context, name, env=cpu_fault.SANITIZER_ENV)
    return Found(run, cpu_fault.read_accesses(run.done.finished.output) or _died(run))


def _died(run: FaultRun) -> list[Access]:
    """The launch during which the process ended, when nothing else tells of it."""
    journal = run.evidence.journal
    if journal is None or journal.ending.how != "died":
        return []
    return [Access("native", "signal", run.done.finished.signal or "the process ended during the launch")]


# Two OpenMP threads that fail at once print `terminate called recursively` and lose the assertion. Kernels
# ask for the number of threads of their compile, which only a limit overrules.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"}


async def run_native(context: Context, target: Target) -> Found:
    """The stack of the crash by gdb, and the index assertion that was printed."""
    prefix = cpu_fault.gdb_prefix()
    run = await target.run(context, "native", env=ONE_THREAD, prefix=prefix)
    found = cpu_fault.read_accesses(run.done.finished.output) or _died(run)
    return Found(run, found, None, "gdb" if prefix else "no gdb on PATH")


def _tool(name: str, context: Context, target: Target) -> Path:
    found = find_tool(name, context.python_for(target.workload), target.workload.env)
    if found is None:
        raise ProblemError(
            f"{name} was not found",
            allowed="on PATH, below CUDA_HOME or /usr/local/cuda, or nvidia-cuda-sanitizer-api in the "
            "workload's environment",
        )
    return found


_SEPARATE = Options(separate_weights=True)
"""One rebuild for all that `auto` tries on CUDA."""


def _sanitizer(tool: SanitizerTool) -> Method:
    async def run(context: Context, target: Target) -> Found:
        return await run_sanitizer(context, target, tool)

    return Method(run, _SEPARATE if tool == "memcheck" else Options())


METHODS: dict[Tool, Method] = {
    **{tool: _sanitizer(tool) for tool in get_args(SanitizerTool)},
    "core_dump": Method(run_core_dump, _SEPARATE),
    "sync": Method(run_sync, _SEPARATE),
    "asan": Method(run_asan, Options(sanitize="address", index_asserts=False)),
    "ubsan": Method(run_ubsan, Options(sanitize="undefined", index_asserts=False)),
    "native": Method(run_native),
}

_AUTO: dict[str, tuple[Tool, ...]] = {
    "cuda": ("memcheck", "core_dump", "sync"),
    "cpu": ("asan", "native"),
}
_CUDA_ONLY = frozenset({*get_args(SanitizerTool), "core_dump", "sync"})


def order(tool: Tool | Literal["auto"], device_type: str | None) -> tuple[Tool, ...]:
    """The methods to try. Raises `ProblemError` for one that cannot see the package's device."""
    device = "cuda" if device_type == "cuda" else "cpu"
    if tool == "auto":
        return _AUTO[device]
    if (tool in _CUDA_ONLY) != (device == "cuda"):
        fitting = sorted(name for name in METHODS if (name in _CUDA_ONLY) == (device == "cuda"))
        raise ProblemError(
            f"{tool} does not look at {device} packages", value=tool, allowed=", ".join(["auto", *fitting])
        )
    return (tool,)
