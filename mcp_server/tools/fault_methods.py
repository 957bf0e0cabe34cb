"""The methods of `locate_fault`: compute-sanitizer, core dumps, sanitized CPU kernels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command
from mcp_server.logs.crash_reports import read_cuda_gdb, read_native, read_progress_log
from mcp_server.logs.sanitizer import SanitizerReport, Site, read_sanitizer_file
from mcp_server.memory_faults.join import (
    foreign_launches,
    match_sites,
    named_launches,
    read_call_sites,
)
from mcp_server.memory_faults.records import (
    Access,
    from_assertion,
    from_backtrace,
    from_core,
    from_native,
    from_progress,
    from_site,
)
from mcp_server.package.assertion import read_assertion
from mcp_server.package.view import PackageView
from mcp_server.probes.commands import Options
from mcp_server.tools.context import Context
from mcp_server.tools.fault_run import FaultRun, Target
from mcp_server.tools.run_deterministic import CACHING_OFF

# Without memory contents: a dump of a few megabytes, written in under a second on one H200.
_SKIP = ["nonrelocated_elf_images", "global_memory", "shared_memory", "local_memory", "constbank_memory"]
_ASK = ("info cuda kernels", "bt", "info line *$errorpc")


def core_environment(directory: Path) -> dict[str, str]:
    """What makes the driver (565 and newer) write a light core dump into `directory` and tell about it."""
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_COREDUMP_FILE": str(directory / "core.%p"),
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(f"skip_{name}" for name in _SKIP),
    }


async def read_core(context: Context, directory: Path, output: Path, debugger: Path | None) -> Access | None:
    """The fault of the dump in `directory`; None when the run left neither a dump nor a progress log."""
    core = next(iter(sorted(path for path in directory.iterdir() if path.stem == "core")), None)
    if core is not None and debugger is not None:
        asked = [part for command in _ASK for part in ("-ex", command)]
        argv = (str(debugger), "-batch", "-ex", f"target cudacore {core}", *asked)
        finished = await context.run(Command(argv=argv, cwd=directory, timeout_s=120), "cuda-gdb")
        with finished.output.open(encoding="utf-8", errors="replace") as lines:
            dump = read_cuda_gdb(lines)
        if dump.exception or dump.kernel:
            return from_core(dump)
    with output.open(encoding="utf-8", errors="replace") as lines:
        first = read_progress_log(lines)
    return from_progress(first) if first is not None else None


SanitizerTool = Literal["memcheck", "initcheck", "racecheck", "synccheck"]

PRINT_LIMIT = 100
PADDING = 512  # bytes behind each allocation; the driver's own granularity hides smaller overruns
# Until the program first uses CUDA; after the default 10 s it goes on unchecked ("No attachable process").
LAUNCH_TIMEOUT_S = 3600

# Another tool's injection keeps the sanitizer out; expandable segments give false alarms (pytorch #196209).
_FOREIGN = ("CUDA_INJECTION64_PATH",)
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def sanitizer_prefix(program: Path, tool: SanitizerTool) -> tuple[str, ...]:
    """The argument list before the interpreter. Options as in compute-sanitizer 2025.3 and 2026.4."""
    padding = ("--padding", str(PADDING)) if tool == "memcheck" else ()
    return (
        *(str(program), "--tool", tool, *padding, "--print-limit", str(PRINT_LIMIT)),
        *("--report-api-errors", "no", "--target-processes", "application-only"),
        *("--launch-timeout", str(LAUNCH_TIMEOUT_S)),
    )


def sanitizer_environment() -> dict[str, str]:
    """Each tensor in an allocation of its own, so that an overrun is outside of one."""
    return dict(CACHING_OFF)


def left_out(env: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that must not reach a process under the sanitizer."""
    return (*_FOREIGN, *(name for name in _ALLOCATOR if "expandable_segments" in env.get(name, "")))


@dataclass(frozen=True)
class Checked:
    """A report with the assertions that the program printed, each once."""

    report: SanitizerReport
    assertions: tuple[str, ...]


def read_report(output: Path) -> Checked:
    """Read the text report out of a program's output, as a stream."""
    assertions: dict[str, None] = {}

    def keep(line: str) -> None:
        if "index out of bounds: " in line and len(assertions) < 100:
            assertions.setdefault(line.strip()[:2000])

    return Checked(read_sanitizer_file(output, keep), tuple(assertions))


def accesses_of(checked: Checked, tool: SanitizerTool, view: PackageView | None) -> list[Access]:
    """The faults of this package first, in the order of the report; an assertion for the asserts' records.

    Records of kernels that no launch of the package started (a library's own) come last.
    """
    found = [
        from_site(site, tool) for site in checked.report.faults if site.kind != "assert" and _ours(site, view)
    ]
    found += [a for text in checked.assertions[:1] if (a := printed_assertion(text)) is not None]
    asserts = [site for site in checked.report.faults if site.kind == "assert"]
    if asserts and not checked.assertions:
        found.append(from_site(asserts[0], tool))
    return found + [
        from_site(s, tool) for s in checked.report.faults if s.kind != "assert" and not _ours(s, view)
    ]


def printed_assertion(text: str) -> Access | None:
    """The index assertion that generated code printed."""
    assertion = read_assertion(text)
    return from_assertion(assertion) if assertion is not None else None


def _ours(site: Site, view: PackageView | None) -> bool:
    """Whether a launch of the package started the kernel."""
    if view is None or site.launch_offset is not None:
        return True
    return any(site.kernel in (launch.symbol, launch.kernel) for launch in view.wrapper.launches)


# The interpreter's own handler for SIGSEGV, faulthandler's, must not replace the sanitizer's.
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=2:handle_sigbus=2:handle_abort=1:detect_container_overflow=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def gdb_prefix() -> tuple[str, ...]:
    """gdb in batch mode around a program; empty where there is none."""
    gdb = shutil.which("gdb")
    return (gdb, "-batch", "-nx", "-ex", "run", "-ex", "bt 100", "--args") if gdb else ()


def read_accesses(output: Path) -> list[Access]:
    """Reports of sanitizers, then the assertion that was printed, then a native stack."""
    with output.open(encoding="utf-8", errors="replace") as lines:
        native = read_native(lines)
    found = [from_native(error) for error in native.errors if error.kind != "ABRT"]
    found += printed_assertions(output)
    stack = from_backtrace(native.backtrace, native.signal)
    return [*found, *([stack] if stack is not None else [])]


def printed_assertions(output: Path) -> list[Access]:
    """The index assertions of an output, each once; the place of the throw is on a line of its own."""
    text = output.read_text(encoding="utf-8", errors="replace")[-200_000:]
    return [found] if "index out of bounds: " in text and (found := printed_assertion(_around(text))) else []


def _around(text: str) -> str:
    at = text.index("index out of bounds: ")
    return text[at : at + 2000]


_TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_DEFAULT = Path("/usr/local")


def find_tool(name: str, python: Path, env: Mapping[str, str]) -> Path | None:
    """The executable `name` (`compute-sanitizer`, `cuda-gdb`); None when there is none."""
    environment = {**os.environ, **env}
    on_path = shutil.which(name, path=environment.get("PATH"))
    if on_path:
        return Path(on_path)
    return next((path for path in _places(name, python, environment) if _runs(path)), None)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _places(name: str, python: Path, env: Mapping[str, str]) -> Iterator[Path]:
    roots = [Path(env[key]) for key in _TOOLKITS if env.get(key)]
    roots += [_DEFAULT / "cuda", *sorted(_DEFAULT.glob("cuda-*"), reverse=True)]
    for root in roots:
        yield from (root / "bin" / name, root / name / name, root / "extras" / name / name)
    yield from _in_site_packages(name, python)


def _in_site_packages(name: str, python: Path) -> Iterator[Path]:
    """`nvidia-cuda-sanitizer-api` installs below `site-packages/nvidia`, in a folder that moved between
    releases."""
    for folder in sorted(python.parent.parent.glob("lib/python3*/site-packages/nvidia")):
        yield from sorted(folder.glob(f"*/bin/{name}"))
        yield from sorted(folder.glob(f"**/{name}"))


async def launch_sites(context: Context, view: PackageView, accesses: Sequence[Access]) -> dict[int, int]:
    """Launch numbers by offset, where a fault's kernel is launched more than once and objdump is there."""
    doubtful = [a for a in accesses[:1] if a.launch_offset is not None and _several(view, a)]
    library, program = view.package.files.library, shutil.which("objdump")
    if not doubtful or library is None or program is None:
        return {}
    directory = context.fresh("objdump")
    copy = directory / "package.so"
    with view.package.container.open(library.name) as stream, copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    argv = (program, "-d", "-C", "--no-show-raw-insn", "--section=.text", str(copy))
    finished = await context.run_in(directory, Command(argv=argv, cwd=directory, timeout_s=60))
    copy.unlink()
    with finished.stdout.open(encoding="utf-8", errors="replace") as lines:
        return match_sites(read_call_sites(lines), view.wrapper.launches)


def _several(view: PackageView, access: Access) -> bool:
    return len(named_launches(view, access) or foreign_launches(view)) > 1


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
        env=sanitizer_environment(),
        unset=left_out(target.workload.env),
        prefix=sanitizer_prefix(program, tool),
        directory=directory,
    )
    checked = read_report(run.done.finished.output)
    _check_attached(checked.report, run)
    accesses = accesses_of(checked, tool, target.view)
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
    env = {**core_environment(directory), **CACHING_OFF}
    run = await target.run(context, "core-dump", env=env, directory=directory)
    output = run.done.finished.output
    debugger = find_tool("cuda-gdb", context.python_for(target.workload), target.workload.env)
    access = await read_core(context, directory, output, debugger)
    asserted = printed_assertions(output)
    found = [*asserted, *([access] if access is not None and not asserted else [])]
    return Found(run, found, None, "read by cuda-gdb" if debugger else "no cuda-gdb: the driver's log only")


async def run_sync(context: Context, target: Target) -> Found:
    """No NVIDIA tool at all: the journal of launches that are waited for."""
    await target.settled()
    if target.rebuilt is None:
        raise ProblemError(f"it needs probes: {target.why_not}")
    run = await target.run(context, "sync", env=dict(CACHING_OFF))
    asserted = printed_assertions(run.done.finished.output)
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
    run = await target.run(context, name, env=SANITIZER_ENV)
    return Found(run, read_accesses(run.done.finished.output) or _died(run))


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
    prefix = gdb_prefix()
    run = await target.run(context, "native", env=ONE_THREAD, prefix=prefix)
    found = read_accesses(run.done.finished.output) or _died(run)
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
