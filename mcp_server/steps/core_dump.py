"""A CUDA core dump of one run, read by cuda-gdb, or the driver's progress log where there is no debugger."""

from __future__ import annotations

from pathlib import Path

from mcp_server.evidence.cuda_gdb import read_cuda_gdb
from mcp_server.evidence.progress_log import read_progress_log
from mcp_server.faults.access import Access, from_core, from_progress
from mcp_server.jobs.types import Command
from mcp_server.steps.context import Context

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
        first = read_progress_log(lines).first
    return from_progress(first) if first is not None else None
