"""The table of operations: what the server offers as tools and the command line as commands."""

from __future__ import annotations

from mcp_server.operations import arguments as args
from mcp_server.operations import calls
from mcp_server.operations.declaration import READS, RUNS_USER_CODE, Operation, joined

DIAGNOSE = Operation(
    name="diagnose",
    title="Diagnose a failing AOTInductor workload",
    description=joined(
        """
        Runs the whole debugging procedure on a failing script, package, exported program or command and
        returns a verdict: category, who is guilty (input, kernel, constant, package, toolchain, ...),
        confidence, evidence with commands, fix. Start here. It reads files first and runs the workload only
        as often as it must: seconds to minutes; budget_s bounds it. Next: what next_steps say.
        """
    ),
    arguments=args.DiagnoseArguments,
    hints=RUNS_USER_CODE,
    call=calls.diagnose,
    examples=(
        "aoti-debug diagnose serve.py -- --batch 8",
        "aoti-debug diagnose model.pt2 --inputs batch.pt --json",
        """aoti-debug diagnose model.pt2 -i '[{"shape": [8, 64], "dtype": "int64", "low": 0, "high": 9}]'""",
        "aoti-debug diagnose ./cpp_host model.pt2",
        "aoti-debug diagnose --log crash.log",
    ),
)

CHECK_DEVICES = Operation(
    name="check_devices",
    title="Check machine, package and inputs",
    description=joined(
        """
        Compares this machine (GPUs, driver, torch, compiler, tools), the package (device, arch, ISA) and
        the inputs (device, dtype, rank, size or range, stride, count, order) before anything runs. Use it
        first for wrong-device, dtype, shape and load errors. Without a package it describes the machine.
        2-10 s. Next: diagnose, or fix the first mismatch.
        """
    ),
    arguments=args.CheckArguments,
    hints=READS,
    call=calls.check_devices,
    examples=("aoti-debug check-devices --package model.pt2 --inputs batch.pt", "aoti-debug check-devices"),
)

COMPILE_WITH_FLAGS = Operation(
    name="compile_with_flags",
    title="Compile with debugging flags",
    description=joined(
        """
        Compiles a torch.export.save'd program in a fresh cache with code-generation flags (NaN checks,
        value printer, provenance, asserts) and returns the new package, its kernels and warnings. Use when
        a flag must act at compile time. A flag that cannot act is refused with the reason. 10-90 s. Next:
        pass the new package to run_deterministic or dump_kernel_io.
        """
    ),
    arguments=args.CompileArguments,
    hints=RUNS_USER_CODE,
    call=calls.compile_with_flags,
    examples=("aoti-debug compile-with-flags model.exported.pt2 --flag TORCHINDUCTOR_NAN_ASSERTS=1",),
)

RUN_DETERMINISTIC = Operation(
    name="run_deterministic",
    title="Repeat a run deterministically",
    description=joined(
        """
        Runs a workload 1-20 times (default 3), each in its own process, without the CUDA caching allocator,
        with blocking launches and the package's input checks, and says whether it fails the same way:
        clean, stable, flaky or varying, with each run's root error (not the first misleading one). Use for
        crashes that move or come and go. Next: inspect_package with the assertion, or diagnose.
        """
    ),
    arguments=args.RepeatArguments,
    hints=RUNS_USER_CODE,
    call=calls.run_deterministic,
    examples=("aoti-debug run-deterministic model.pt2 --inputs batch.pt --repeats 5",),
)

INSPECT_PACKAGE = Operation(
    name="inspect_package",
    title="Read a package",
    description=joined(
        """
        Reads a .pt2 package without running it: inputs with ranges, launches with arguments, dataflow,
        weights, model lines. Without a question an overview; ask one thing to get it in full, e.g. which
        launch and input an `index out of bounds` text means. Pages: offset. About 1 s.
        """
    ),
    arguments=args.InspectArguments,
    hints=READS,
    call=calls.inspect_package,
    examples=(
        "aoti-debug inspect-package model.pt2",
        "aoti-debug inspect-package model.pt2 --assertion 'index out of bounds: 0 <= tmp4 < ks1'",
        "aoti-debug inspect-package model.pt2 --location model.py:42",
    ),
)

EXPLAIN_ERROR = Operation(
    name="explain_error",
    title="Explain an error text",
    description=joined(
        """
        Explains an error text or log without running anything: which error is the root, its family and
        fields (file, line, block, thread, index, bound), what it does not prove, which guide to follow, and
        the next call. Use when there is only a text. Under 1 s for most logs. Next: the call in `next`.
        """
    ),
    arguments=args.ExplainArguments,
    hints=READS,
    call=calls.explain_error,
    examples=(
        "aoti-debug explain-error --log crash.log",
        "aoti-debug explain-error --text 'index out of bounds: 0 <= tmp4 < ks1' --package model.pt2",
    ),
)

DUMP_KERNEL_IO = Operation(
    name="dump_kernel_io",
    title="Look at kernel inputs and outputs",
    description=joined(
        """
        Runs a package or exported program once and shows statistics of what chosen launches read and wrote
        (range, NaN, Inf, index against bound), the first bad value, and who produced it. Use for NaN, Inf,
        wrong values, and to see the index behind an assertion. Needs inputs. 5-30 s. Next: fix the
        producer, or inspect_package for its model line.
        """
    ),
    arguments=args.DumpArguments,
    hints=RUNS_USER_CODE,
    call=calls.dump_kernel_io,
    examples=("aoti-debug dump-kernel-io --package model.pt2 --inputs batch.pt --stop-at-first-bad",),
)

LOCATE_FAULT = Operation(
    name="locate_fault",
    title="Locate a memory fault",
    description=joined(
        """
        Puts a package's call, or the failing call of a script or command, under a checker and names launch,
        argument, access, generated and model line, producer. Use for illegal memory access, segfaults,
        corruption, silent bad reads. A package needs inputs, a C++ host (command) a package. 10-90 s.
        Next: dump_kernel_io of the producer, or the fix it names.
        """
    ),
    arguments=args.LocateArguments,
    hints=RUNS_USER_CODE,
    call=calls.locate_fault,
    examples=(
        "aoti-debug locate-fault model.pt2 --inputs batch.pt",
        "aoti-debug locate-fault serve.py -- --batch 8",
        "aoti-debug locate-fault ./cpp_host model.pt2 --package model.pt2",
    ),
)

TRACE_LAUNCHES = Operation(
    name="trace_launches",
    title="Trace every launch",
    description=joined(
        """
        Rebuilds a package with a probe at every launch (no model source needed), runs it, and returns the
        launches with arguments and the one at which the run ended. Use for crashes and hangs that name no
        kernel. Without inputs it only hands back the instrumented package and environment, for a C++ host.
        5-40 s. Next: inspect_package with that launch, or dump_kernel_io.
        """
    ),
    arguments=args.TraceArguments,
    hints=RUNS_USER_CODE,
    call=calls.trace_launches,
    examples=("aoti-debug trace-launches model.pt2 --inputs batch.pt",),
)

COMPARE_WITH_EAGER = Operation(
    name="compare_with_eager",
    title="Compare with eager",
    description=joined(
        """
        Finds the first launch of a package that departs from its exported program in eager mode by more
        than rounding. Use for wrong numbers without an error. 5-60 s. Next: inspect_package.
        """
    ),
    arguments=args.CompareArguments,
    hints=RUNS_USER_CODE,
    call=calls.compare_with_eager,
    examples=("aoti-debug compare-with-eager --package model.pt2 --exported program.pt2 --inputs batch.pt",),
)

OPERATIONS: tuple[Operation, ...] = (
    DIAGNOSE,
    EXPLAIN_ERROR,
    CHECK_DEVICES,
    INSPECT_PACKAGE,
    RUN_DETERMINISTIC,
    DUMP_KERNEL_IO,
    LOCATE_FAULT,
    TRACE_LAUNCHES,
    COMPARE_WITH_EAGER,
    COMPILE_WITH_FLAGS,
)
