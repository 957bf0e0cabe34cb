"""The table of operations: what the server offers as tools and the command line as commands."""

from __future__ import annotations

from mcp_server.operations import arguments as args
from mcp_server.operations import calls
from mcp_server.operations.declaration import READS, RUNS_USER_CODE, Operation

DIAGNOSE = Operation(
    name="diagnose",
    title="Diagnose a failing AOTInductor workload",
    description=(
        "Runs the whole debugging procedure on a failing script, package, exported program or command and "
        "returns a verdict: category, who is guilty (input, kernel, constant, package, toolchain, ...), "
        "confidence, evidence with commands, fix. Start here. It reads files first and runs the workload "
        "only as often as it must: seconds to minutes; budget_s bounds it. Next: what next_steps say."
    ),
    arguments=args.DiagnoseArguments,
    hints=RUNS_USER_CODE,
    call=calls.diagnose,
    examples=(
        "aoti-debug diagnose serve.py -- --batch 8",
        "aoti-debug diagnose model.pt2 --inputs batch.pt --json",
        """aoti-debug diagnose model.pt2 -i '[{"shape": [8, 64], "dtype": "int64", "low": 0, "high": 9}]'""",
        "aoti-debug diagnose ./cpp_host model.pt2",
    ),
)

CHECK_DEVICES = Operation(
    name="check_devices",
    title="Check machine, package and inputs",
    description=(
        "Compares this machine (GPUs, driver, torch, compiler, tools), the package (device, arch, ISA) and "
        "the inputs (device, dtype, rank, size or range, stride, count, order) before anything runs. Use it "
        "first for wrong-device, dtype, shape and load errors. Without a package it describes the machine. "
        "2-10 s. Next: diagnose, or fix the first mismatch."
    ),
    arguments=args.CheckArguments,
    hints=READS,
    call=calls.check_devices,
    examples=("aoti-debug check-devices --package model.pt2 --inputs batch.pt", "aoti-debug check-devices"),
)

COMPILE_WITH_FLAGS = Operation(
    name="compile_with_flags",
    title="Compile with debugging flags",
    description=(
        "Compiles a torch.export.save'd program in a fresh cache with code-generation flags (NaN checks, "
        "value printer, provenance, asserts) and returns the new package, its kernels and warnings. Use when "
        "a flag must act at compile time. A flag that cannot act is refused with the reason. 10-90 s. Next: "
        "pass the new package to run_deterministic or dump_kernel_io."
    ),
    arguments=args.CompileArguments,
    hints=RUNS_USER_CODE,
    call=calls.compile_with_flags,
    examples=("aoti-debug compile-with-flags model.exported.pt2 --flag TORCHINDUCTOR_NAN_ASSERTS=1",),
)

OPERATIONS: tuple[Operation, ...] = (DIAGNOSE, CHECK_DEVICES, COMPILE_WITH_FLAGS)
