"""What to call next, as calls that exist."""

from __future__ import annotations

from mcp_server.diagnosis.call_arguments import call_arguments, workload_arguments
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.reductions import reduction
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Category, NextStep, PackageWorkload
from mcp_server.steps.explain_words import program_of

# What shows most about a category that is not settled: tool, and why.
TOOLS: dict[Category, tuple[str, str]] = {
    "device_mismatch": ("check_devices", "compare the inputs' devices with the package"),
    "input_mismatch": ("check_devices", "compare every input with what the package was compiled for"),
    "shape_out_of_range": ("check_devices", "compare every dimension with its compiled range"),
    "index_out_of_bounds": ("dump_kernel_io", "see the index, its bound and the input behind it"),
    "illegal_memory_access": ("locate_fault", "name the launch and the line of the bad access"),
    "nan_or_inf": ("dump_kernel_io", "find the first launch whose output is not finite"),
    "wrong_output": ("dump_kernel_io", "look at what each launch reads and writes"),
    "custom_op": (
        "run_deterministic",
        "run with the input checks, which compare each op's output with its fake",
    ),
    "concurrency": ("run_deterministic", "see whether repeats agree"),
    "hang": ("trace_launches", "see the last launch that began"),
    "toolchain": ("check_devices", "check the compiler and the libraries"),
    "environment": ("check_devices", "check driver, devices and tools"),
    "out_of_memory": ("check_devices", "check free memory"),
}

REPEATED = "see whether the failure is stable, and its root error"
PROGRAM = "path/of/the/failing/program.py"

# Tools that take a script or a command as well as a package.
ANY_WORKLOAD = frozenset({"run_deterministic", "diagnose"})


def next_steps(best: Suspect | None, case: Case) -> list[NextStep]:
    """Calls that would settle the category, or show more of it."""
    if case.workload is None:
        return [_from_log(best, case)]
    if best is None and not case.healthy:
        return [_repeated(case)]
    if best is None:
        return [_of_program()] if isinstance(case.workload, PackageWorkload) else []
    return [*_closer(best, case), *reduction(best, case)]


def _closer(best: Suspect, case: Case) -> list[NextStep]:
    """The tool that shows most about the category."""
    assert case.workload is not None
    if best.category not in TOOLS:
        return []
    tool, why = TOOLS[best.category]
    arguments = call_arguments(case) or workload_arguments(case.workload)
    if tool not in ANY_WORKLOAD and "package" not in arguments:
        return [_repeated(case)]
    return [NextStep(why=why, tool=tool, arguments=arguments)]


def _repeated(case: Case) -> NextStep:
    """What can be done about any workload of which nothing is known."""
    assert case.workload is not None
    arguments = call_arguments(case) or workload_arguments(case.workload)
    return NextStep(why=REPEATED, tool="run_deterministic", arguments=arguments)


def _of_program() -> NextStep:
    return NextStep(
        why="if calls of it fail in a program, what the program does around them is not in the package",
        tool="diagnose",
        arguments={"script": PROGRAM},
    )


def _from_log(best: Suspect | None, case: Case) -> NextStep:
    what = f" and prove {best.category}" if best else ""
    return NextStep(
        why=f"a log alone proves nothing: run the failing program to reproduce it{what}",
        tool="diagnose",
        arguments=(program_of(case.log) if case.log is not None else {}) or {"script": PROGRAM},
    )
