"""What `locate_fault` runs (a call of a package, or the whole program), and the methods that watch it.

The methods are compute-sanitizer, core dumps, the journal and sanitized CPU kernels.
"""

import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.logs.crash_reports import Access, SanitizerTool, read_cuda_gdb, read_native, read_progress_log
from mcp_server.logs.journal import read_journal_file
from mcp_server.logs.sanitizer import SanitizerReport, read_sanitizer_file
from mcp_server.memory_faults.situation import Evidence, ValueRange
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.assertion import read_assertion
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.build import with_probes
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.tools.capture import workload_argv
from mcp_server.tools.check_devices import Given, from_leaves
from mcp_server.tools.kernel_io import unset_arguments
from mcp_server.tools.machine import find_tool
from mcp_server.tools.requests import run_request
from mcp_server.tools.run_deterministic import CACHING_OFF
from mcp_server.tools.trace_launches import journal_environment
from mcp_server.worker import events

MOST_NAMES = 200  # integer tensors whose range is read in the faulting run

PROVENANCE = {"INDUCTOR_PROVENANCE": "1"}  # a compile during the run also records the model lines

_INTEGERS = ("int", "uint", "bool")

Program = ScriptWorkload | CommandWorkload


@dataclass(frozen=True)
class FaultRun:
    """One run, and what a method saw in it. `errors` is the number of errors that the tool reports."""

    done: WorkerRun
    evidence: Evidence = field(default_factory=Evidence)
    accesses: Sequence[Access] = ()
    errors: int | None = None
    what: str = ""


@dataclass(frozen=True)
class PackageTarget:
    """One call of a package, with probes if it can be rebuilt. `why_not` says why it cannot."""

    workload: PackageWorkload
    view: PackageView
    rebuilt: Instrumented | None = None
    why_not: str = ""

    async def run(
        self,
        context: Context,
        directory: Path,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> FaultRun:
        """Run the call once, waiting for the device after each launch; a crash is a result.

        `directory` gets the output.
        """
        journal = directory / "launches.jsonl"
        env = {**env, **journal_environment(journal)}
        operation, request = "run", dict[str, object](run_request(self.workload))
        if self.rebuilt is not None:
            operation, env = "observe", {**self.rebuilt.environment, **env}
            request |= {
                "package": self.rebuilt.package,
                "names": integer_tensors(self.view)[:MOST_NAMES],
                "phases": ["before"],
                "skip_before": unset_arguments(self.view),
            }
        done = await context.worker(
            operation,
            request,
            directory=directory,
            workload=self.workload,
            env=env,
            unset=unset,
            prefix=prefix,
        )
        flat = _given_to(done).tensors
        if self.rebuilt is None:
            return FaultRun(done, Evidence(inputs=flat))
        ranges, launches = read_ranges(done.all(events.Argument)), read_journal_file(journal)
        return FaultRun(done, Evidence(journal=launches, synchronous=True, ranges=ranges, inputs=flat))


def _given_to(run: WorkerRun) -> Given:
    """The inputs of the call if all of them are tensors, else none."""
    given = run.last(events.Given)
    leaves = given.leaves if given is not None else []
    tensors = [replace(leaf, kind=leaf.kind or "tensor") for leaf in leaves if leaf.shape is not None]
    return from_leaves(tensors if len(tensors) == len(leaves) else [], None)


async def prepare(context: Context, workload: PackageWorkload, options: Options) -> PackageTarget:
    """Rebuild the package with probes; if that fails, the package is run as it is."""
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    try:
        return PackageTarget(workload, view, await with_probes(context, workload, options))
    except ProblemError as problem:
        return PackageTarget(workload, view, why_not=str(problem))


@dataclass
class ProgramTarget:
    """The user's own program. `caching_off` is False if it captures CUDA graphs, which need the allocator.

    `children` means that a child process made the call, so compute-sanitizer must follow child processes.
    """

    workload: Program
    view: PackageView
    caching_off: bool = True
    children: bool = False
    rebuilt = None
    why_not = "the program itself was run, with the package as it is"

    async def run(
        self,
        context: Context,
        directory: Path,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> FaultRun:
        """Run the program once; without probes there is no journal."""
        wanted = {**PROVENANCE, **self.workload.env, **env}
        kept = [key for key in wanted if key not in unset and (self.caching_off or key not in CACHING_OFF)]
        scope = {"application-only": "all"} if self.children else {}
        command = Command(
            argv=(*(scope.get(word, word) for word in prefix), *workload_argv(context, self.workload)),
            cwd=self.workload.cwd or Path.cwd(),
            env={key: wanted[key] for key in kept},
            timeout_s=self.workload.timeout_s,
            unset=tuple(unset),
        )
        finished = await context.run_in(directory, command, runs=1)
        return FaultRun(WorkerRun(finished, (), directory, context.python_for(self.workload)))


Target = PackageTarget | ProgramTarget


def integer_tensors(view: PackageView) -> list[str]:
    """List variables that may hold indices, including those of unknown type (results of operators)."""
    types = {i.name: i.dtype for i in view.package.inputs}
    types |= {c.name: c.dtype for c in view.package.constants}
    types |= {b.name: b.dtype for b in view.wrapper.buffers.values() if b.dtype and b.name not in types}
    used = dict.fromkeys(name for launch in view.wrapper.launches for name in launch.reads)
    return [name for name in used if (types.get(name) or "int").startswith(_INTEGERS)]


def read_ranges(seen: Iterable[events.Argument]) -> dict[tuple[int, str], ValueRange]:
    """Minimum and maximum element by launch and variable, in the last run of the launch."""
    return {
        (each.launch, each.name): ValueRange(int(each.min), int(each.max))
        for each in seen
        if each.min is not None and each.max is not None and (each.dtype or "").startswith(_INTEGERS)
    }


Tool = Literal[
    "memcheck", "initcheck", "racecheck", "synccheck", "core_dump", "sync", "asan", "ubsan", "native"
]


# A function that runs a tool, and the options of the rebuilt package that it needs.
Method = tuple[Callable[[Context, Target], Awaitable[FaultRun]], Options]
PRINT_LIMIT = 100
PADDING = 512  # bytes after each allocation; the driver's own granularity hides smaller overruns
# Time until the program first uses CUDA; after the default 10 s it runs unchecked ("No attachable process").
LAUNCH_TIMEOUT_S = 3600

# Another tool's injection keeps the sanitizer out; expandable segments give false alarms (pytorch #196209).
_FOREIGN = ("CUDA_INJECTION64_PATH",)
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


async def run_sanitizer(context: Context, target: Target, tool: SanitizerTool) -> FaultRun:
    """Run once under compute-sanitizer. Its report decides, not its exit code.

    Raise `ProblemError` if the program did not run, or ran unchecked: a clean report then means nothing.
    """
    env = target.workload.env
    program = find_tool("compute-sanitizer", env, context.python_for(target.workload))
    if program is None:
        raise ProblemError(
            "compute-sanitizer was not found",
            allowed="on PATH, below CUDA_HOME or /usr/local/cuda, or nvidia-cuda-sanitizer-api in the "
            "workload's environment",
        )
    run = await target.run(
        context,
        context.fresh(tool),
        env=CACHING_OFF,  # one allocation for each tensor, so that an overrun leaves it
        unset=left_out(env),
        prefix=sanitizer_prefix(program, tool),
    )
    report, accesses = read_report(run.done.finished.output, tool, target.view)
    if not report.sites and report.errors is None:
        unchecked = any("No attachable process" in message for message in report.messages)
        if unchecked or not run.done.events:
            raise ProblemError(
                "compute-sanitizer did not check the program: " + "; ".join(report.messages[:3])
            )
    return replace(run, accesses=accesses, errors=report.errors, what=f"{report.errors} errors counted")


def sanitizer_prefix(program: Path, tool: SanitizerTool) -> tuple[str, ...]:
    """The words before the interpreter; options of compute-sanitizer 2025.3 and 2026.4."""
    padding = ("--padding", str(PADDING)) if tool == "memcheck" else ()
    return (
        *(str(program), "--tool", tool, *padding, "--print-limit", str(PRINT_LIMIT)),
        *("--report-api-errors", "no", "--target-processes", "application-only"),
        *("--launch-timeout", str(LAUNCH_TIMEOUT_S)),
    )


def left_out(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that must not reach a process under the sanitizer."""
    return (*_FOREIGN, *(name for name in _ALLOCATOR if "expandable_segments" in env.get(name, "")))


def read_report(output: Path, tool: SanitizerTool, view: PackageView) -> tuple[SanitizerReport, list[Access]]:
    """Read the text report in a program's output, and its faults in order, those of this package first.

    An assertion that the program printed replaces the records of asserts. Records of kernels that no launch
    of the package started (such as a library's own) come last.
    """
    assertions: list[str] = []

    def keep(line: str) -> None:
        if "index out of bounds: " in line and not assertions:
            assertions.append(line.strip()[:2000])

    report = read_sanitizer_file(output, keep)
    launched = {name for launch in view.wrapper.launches for name in (launch.symbol, launch.kernel)}
    ours, asserts, foreign = list[Access](), list[Access](), list[Access]()
    for site in report.faults:
        of_package = site.launch_offset is not None or site.kernel in launched
        group = asserts if site.kind == "assert" else ours if of_package else foreign
        group.append(replace(site, tool=tool))
    return report, [*ours, *(_printed(assertions[0]) if assertions else asserts[:1]), *foreign]


def _printed(text: str) -> list[Access]:
    """The index assertion that generated code printed, if `text` is one."""
    assertion = read_assertion(text)
    if assertion is None:
        return []
    return [
        Access(
            tool="assert",
            kind="assert",
            text=f"index out of bounds: {assertion.condition}",
            kernel=assertion.kernel or "",
            file=assertion.file or "",
            line=assertion.line,
            condition=assertion.condition,
        )
    ]


# Without memory contents: a dump of a few megabytes, written in under a second on one H200.
_SKIP = ["nonrelocated_elf_images", "global_memory", "shared_memory", "local_memory", "constbank_memory"]
_ASK = ("info cuda kernels", "bt", "info line *$errorpc")


async def run_core_dump(context: Context, target: Target) -> FaultRun:
    """Run once with light core dumps enabled; cuda-gdb, if installed, reads the dump."""
    directory = context.fresh("core-dump")
    run = await target.run(context, directory, env={**core_environment(directory), **CACHING_OFF})
    output = run.done.finished.output
    debugger = find_tool("cuda-gdb", target.workload.env, context.python_for(target.workload))
    access = await read_core(context, directory, output, debugger)
    found = await anyio.to_thread.run_sync(_assertions_in, output) or ([access] if access is not None else [])
    what = "read by cuda-gdb" if debugger else "no cuda-gdb: the driver's log only"
    return replace(run, accesses=found, what=what)


def core_environment(directory: Path) -> dict[str, str]:
    """The variables that make the driver (565 and newer) write a light core dump to `directory`."""
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_COREDUMP_FILE": str(directory / "core.%p"),
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(f"skip_{name}" for name in _SKIP),
    }


async def read_core(context: Context, directory: Path, output: Path, debugger: Path | None) -> Access | None:
    """The bad access of the dump in `directory`, or else of the driver's log in `output`, or None."""
    core = next(iter(sorted(path for path in directory.iterdir() if path.stem == "core")), None)
    if core is not None and debugger is not None:
        asked = [part for command in _ASK for part in ("-ex", command)]
        argv = (str(debugger), "-batch", "-ex", f"target cudacore {core}", *asked)
        finished = await context.run(Command(argv=argv, cwd=directory, timeout_s=120), "cuda-gdb")
        with finished.output.open(encoding="utf-8", errors="replace") as lines:
            dump = read_cuda_gdb(lines)
        if dump is not None:
            return dump
    with output.open(encoding="utf-8", errors="replace") as lines:
        return read_progress_log(lines)


async def run_sync(context: Context, target: Target) -> FaultRun:
    """Run once, waiting for the device after each launch, and read the journal: needs no NVIDIA tool."""
    _check_rebuilt(target)
    run = await target.run(context, context.fresh("sync"), env=CACHING_OFF)
    asserted = await anyio.to_thread.run_sync(_assertions_in, run.done.finished.output)
    if asserted:
        return replace(run, accesses=asserted)
    ending = run.evidence.journal.ending if run.evidence.journal is not None else None
    if ending is None or ending.how not in ("fault", "died") or ending.launch is None:
        return replace(run, what=f"the journal ends: {ending.how if ending else 'empty'}")
    text = ending.launch.fault or "the process ended during the launch"
    return replace(run, accesses=[Access("sync", "invalid_access", text)])


# faulthandler's SIGSEGV handler must not replace the sanitizer's.
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=2:handle_sigbus=2:handle_abort=1:detect_container_overflow=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


async def _run_sanitized(context: Context, target: Target, name: str) -> FaultRun:
    """Run C++ kernels built with a sanitizer, without index asserts, each weight in its own memory."""
    _check_rebuilt(target)
    run = await target.run(context, context.fresh(name), env=SANITIZER_ENV)
    return replace(run, accesses=await anyio.to_thread.run_sync(_native_accesses, run))


# Two OpenMP threads that fail at once print `terminate called recursively` and lose the assertion. Kernels
# request the thread count of their compile, which only a limit overrides.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"}


async def run_native(context: Context, target: Target) -> FaultRun:
    """Run once under gdb, for the stack of a crash, and read the index assertion that was printed."""
    gdb = shutil.which("gdb")
    prefix = (gdb, "-batch", "-nx", "-ex", "run", "-ex", "bt 100", "--args") if gdb else ()
    run = await target.run(context, context.fresh("native"), env=ONE_THREAD, prefix=prefix)
    finished = run.done.finished
    ended = finished.output.read_bytes()[-200_000:].decode("utf-8", "replace")
    if gdb and finished.returncode == 1 and "exited normally]" in ended:
        # This is the status of gdb, which found no stack to print: the program did not crash.
        run = replace(run, done=replace(run.done, finished=replace(finished, returncode=0)))
    found = await anyio.to_thread.run_sync(_native_accesses, run)
    return replace(run, accesses=found, what="gdb" if gdb else "no gdb on PATH")


def _check_rebuilt(target: Target) -> None:
    """Raise `ProblemError` if the package could not be rebuilt with probes."""
    if target.rebuilt is None:
        raise ProblemError(f"the package was not rebuilt with probes: {target.why_not}")


def _native_accesses(run: FaultRun) -> list[Access]:
    """Sanitizer reports, the printed assertion and a native stack; else the launch that died."""
    output, journal = run.done.finished.output, run.evidence.journal
    with output.open(encoding="utf-8", errors="replace") as lines:
        native = read_native(lines)
    found = [error for error in native.errors if error.text != "ABRT"]
    found += _assertions_in(output)
    if native.crash is not None:
        found.append(native.crash)
    if not found and journal is not None and journal.ending.how == "died":
        text = run.done.finished.signal or "the process ended during the launch"
        found.append(Access("native", "signal", text))
    return found


def _assertions_in(output: Path) -> list[Access]:
    """The first index assertion of an output, with the location on a later line."""
    text = output.read_text(encoding="utf-8", errors="replace")[-200_000:]
    at = text.find("index out of bounds: ")
    return _printed(text[at : at + 2000]) if at >= 0 else []


_SEPARATE = Options(separate_weights=True)  # one rebuild serves all methods that `auto` tries on CUDA

METHODS: dict[Tool, Method] = {
    "memcheck": (partial(run_sanitizer, tool="memcheck"), _SEPARATE),
    "initcheck": (partial(run_sanitizer, tool="initcheck"), Options()),
    "racecheck": (partial(run_sanitizer, tool="racecheck"), Options()),
    "synccheck": (partial(run_sanitizer, tool="synccheck"), Options()),
    "core_dump": (run_core_dump, _SEPARATE),
    "sync": (run_sync, _SEPARATE),
    "asan": (partial(_run_sanitized, name="asan"), Options(sanitize="address", index_asserts=False)),
    "ubsan": (partial(_run_sanitized, name="ubsan"), Options(sanitize="undefined", index_asserts=False)),
    "native": (run_native, Options()),
}
_CPU_ONLY = ("asan", "ubsan", "native")
_AUTO: dict[str, tuple[Tool, ...]] = {"cuda": ("memcheck", "core_dump", "sync"), "cpu": ("asan", "native")}


def order(tool: Tool | Literal["auto"], device_type: str | None) -> tuple[Tool, ...]:
    """List the methods to try. Raise `ProblemError` for a method that cannot see the package's device."""
    device = "cuda" if device_type == "cuda" else "cpu"
    if tool == "auto":
        return _AUTO[device]
    fitting = sorted(name for name in METHODS if (name in _CPU_ONLY) == (device == "cpu"))
    if tool not in fitting:
        raise ProblemError(
            f"{tool} does not look at {device} packages", value=tool, allowed=", ".join(["auto", *fitting])
        )
    return (tool,)
