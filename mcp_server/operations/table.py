"""The table of operations: what the server offers as tools, and how the command line spells them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from mcp_server.model import NextStep
from mcp_server.operations import arguments as args
from mcp_server.operations import calls
from mcp_server.operations.arguments import READS, RUNS_USER_CODE, Operation
from mcp_server.operations.work import HANDLE

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="diagnose",
        title="Diagnose a failure",
        description="Runs the whole procedure on a failing script, package, exported program or command: a "
        "verdict with category, who is guilty (input, kernel, constant, package, toolchain, ...), "
        "confidence, evidence with commands, fix. Start here. Reads files first, runs the workload only as "
        "often as it must: seconds to minutes. Next: its next_steps.",
        arguments=args.DiagnoseArguments,
        hints=RUNS_USER_CODE,
        call=calls.diagnose,
        examples=(
            "aoti-debug diagnose serve.py -- --batch 8",
            "aoti-debug diagnose model.pt2 --inputs batch.pt --json",
            "aoti-debug diagnose model.pt2 -i "
            """'[{"shape": [8, 64], "dtype": "int64", "low": 0, "high": 9}]'""",
            "aoti-debug diagnose ./cpp_host model.pt2",
            "aoti-debug diagnose --log crash.log",
        ),
    ),
    Operation(
        name="explain_error",
        title="Explain an error",
        description="Explains an error text or log without running anything: which error is the root, its "
        "family and fields (file, line, block, thread, index, bound), what it does not prove, guide, next "
        "call. Under 1 s for most logs.",
        arguments=args.ExplainArguments,
        hints=READS,
        call=calls.explain_error,
        examples=(
            "aoti-debug explain-error --log crash.log",
            "aoti-debug explain-error --text 'index out of bounds: 0 <= tmp4 < ks1' --package model.pt2",
        ),
    ),
    Operation(
        name="check_devices",
        title="Check machine and inputs",
        description="Compares this machine (GPUs, driver, torch, compiler, tools), the package (device, "
        "arch, ISA) and the inputs (device, dtype, rank, size or range, stride, count, order) before "
        "anything runs. First for wrong-device, dtype, shape and load errors. Without a package: the "
        "machine. 2-10 s. Next: diagnose, or fix the first mismatch.",
        arguments=args.CheckArguments,
        hints=READS,
        call=calls.check_devices,
        examples=(
            "aoti-debug check-devices --package model.pt2 --inputs batch.pt",
            "aoti-debug check-devices",
        ),
    ),
    Operation(
        name="inspect_package",
        title="Read a package",
        description="Reads a .pt2 package without running it: inputs with ranges, launches with arguments, "
        "dataflow, weights, model lines. An overview, or the answer in full to one question (launch, "
        "kernel, ... assertion): which launch and input does an `index out of bounds` text mean? About 1 "
        "s.",
        arguments=args.InspectArguments,
        hints=READS,
        call=calls.inspect_package,
        examples=(
            "aoti-debug inspect-package model.pt2",
            "aoti-debug inspect-package model.pt2 --assertion 'index out of bounds: 0 <= tmp4 < ks1'",
            "aoti-debug inspect-package model.pt2 --location model.py:42",
        ),
    ),
    Operation(
        name="run_deterministic",
        title="Repeat a run",
        description="Runs a workload several times, each in its own process, without the CUDA caching "
        "allocator, with blocking launches and the package's input checks: clean, stable, flaky or "
        "varying, and each run's root error. For crashes that move or come and go. Next: inspect_package "
        "with the assertion, or diagnose.",
        arguments=args.RepeatArguments,
        hints=RUNS_USER_CODE,
        call=calls.run_deterministic,
        examples=("aoti-debug run-deterministic model.pt2 --inputs batch.pt --repeats 5",),
    ),
    Operation(
        name="dump_kernel_io",
        title="Look at kernel values",
        description="Runs a package or exported program once and shows what chosen launches read and wrote "
        "(range, NaN, Inf, index against bound), the first bad value, and who made it. For NaN, Inf, wrong "
        "values, the index behind an assertion. Needs inputs. 5-30 s. Next: fix the producer, or "
        "inspect_package for its model line.",
        arguments=args.DumpArguments,
        hints=RUNS_USER_CODE,
        call=calls.dump_kernel_io,
        examples=("aoti-debug dump-kernel-io --package model.pt2 --inputs batch.pt --stop-at-first-bad",),
    ),
    Operation(
        name="locate_fault",
        title="Locate a memory fault",
        description="Puts a package's call, or the failing call of a script or command, under a checker and "
        "names launch, argument, access, generated and model line, producer. For illegal memory access, "
        "segfaults, corruption, silent bad reads. A package needs inputs, a C++ host (command) a package. "
        "10-90 s. Next: dump_kernel_io of the producer, or the fix.",
        arguments=args.LocateArguments,
        hints=RUNS_USER_CODE,
        call=calls.locate_fault,
        examples=(
            "aoti-debug locate-fault model.pt2 --inputs batch.pt",
            "aoti-debug locate-fault serve.py -- --batch 8",
            "aoti-debug locate-fault ./cpp_host model.pt2 --package model.pt2",
        ),
    ),
    Operation(
        name="trace_launches",
        title="Trace every launch",
        description="Rebuilds a package with a probe at every launch (no model source needed) and runs it: "
        "the launches with arguments, and the one at which the run ended. For crashes and hangs that name "
        "no kernel. Without inputs: the instrumented package and environment, for a C++ host. 5-40 s. "
        "Next: inspect_package with that launch.",
        arguments=args.TraceArguments,
        hints=RUNS_USER_CODE,
        call=calls.trace_launches,
        examples=("aoti-debug trace-launches model.pt2 --inputs batch.pt",),
    ),
    Operation(
        name="try_fix",
        title="Try a change",
        description="Makes a package's failing call without, with and again without a change of an input "
        "element, constant, launch or generated expression: gone, changed or same, and which elements that "
        "were not at fault it changes. No model source needed; nothing of yours is written. For a fix to "
        "verify. 3-30 s. Next: apply the fix, or diagnose.",
        arguments=args.TryArguments,
        hints=RUNS_USER_CODE,
        call=calls.try_fix,
        examples=(
            "aoti-debug try-fix model.pt2 --inputs batch.pt --change 'args[1]: clamp 0 9'",
            "aoti-debug try-fix model.pt2 -i batch.pt --kernel cpp_fused_0 "
            "--replace 'tmp3 - tmp5' 'tmp5 - tmp3'",
            "aoti-debug try-fix model.pt2 -i batch.pt --launch 3 --as finite-mask --expect right.pt",
        ),
    ),
    Operation(
        name="compare_with_eager",
        title="Compare with eager",
        description="Finds the first launch of a package that departs from its exported program in eager "
        "mode by more than rounding. For wrong numbers without an error. 5-60 s. Next: inspect_package, or "
        "reduce.",
        arguments=args.CompareArguments,
        hints=RUNS_USER_CODE,
        call=calls.compare_with_eager,
        examples=(
            "aoti-debug compare-with-eager --package model.pt2 --exported program.pt2 --inputs batch.pt",
        ),
    ),
    Operation(
        name="compile_with_flags",
        title="Compile with flags",
        description="Compiles an exported program with code-generation flags (NaN checks, value printer, "
        "minifier, provenance, asserts): new package, kernels, warnings. For flags that act at compile "
        "time; one that cannot act is refused with the reason. 10-90 s. Next: run_deterministic or "
        "dump_kernel_io with the package.",
        arguments=args.CompileArguments,
        hints=RUNS_USER_CODE,
        call=calls.compile_with_flags,
        examples=("aoti-debug compile-with-flags model.exported.pt2 --flag TORCHINDUCTOR_NAN_ASSERTS=1",),
    ),
    Operation(
        name="reduce",
        title="Make a reproduction",
        description="Cuts a failing program down to the few operators that still fail in the same way "
        "(crash, error, NaN, wrong output), or replays one launch with its inputs: a script that needs "
        "torch alone and was seen to fail. For bug reports and compiler faults. 1-10 min. Next: run it.",
        arguments=args.ReduceArguments,
        hints=RUNS_USER_CODE,
        call=calls.reduce,
        examples=(
            "aoti-debug reduce --exported program.pt2 --inputs batch.pt",
            "aoti-debug reduce --scope launch --package model.pt2 --inputs batch.pt --launch 3",
        ),
    ),
)
DIAGNOSE = OPERATIONS[0]


OPTION_NAMES = {
    "inputs": ("--inputs", "-i"),
    "env": ("--env", "-e"),
    "flags": ("--flag", "-f"),
    "changes": ("--change",),
    "how": ("--as",),
}
COMMANDS = frozenset({"check"})  # options that take a whole command line
PAIRS = frozenset({"replace"})  # options that take two words at once


def command_name(tool: str) -> str:
    return tool.replace("_", "-")


def option_names(name: str, field: FieldInfo) -> tuple[str, ...]:
    """The spellings of a field's option; a flag's second spelling, after a slash, turns it off."""
    dashed = command_name(name)
    plain = f"--{dashed}/--no-{dashed}" if field.annotation is bool else f"--{dashed}"
    return OPTION_NAMES.get(name, (plain,))


def is_mapping(field: FieldInfo) -> bool:
    """Whether the option is repeated as NAME=VALUE."""
    return get_origin(field.annotation) is dict


def command_line(step: NextStep) -> str:
    """The shell line that does what a suggested tool call does; required arguments stand without a name."""
    fields = next((op.arguments.model_fields for op in OPERATIONS if op.name == step.tool), {})
    required = sorted(name for name in step.arguments if name in fields and fields[name].is_required())
    words = ["aoti-debug", command_name(step.tool), *(str(step.arguments[name]) for name in required)]
    named = {name: value for name, value in step.arguments.items() if name not in required}
    if step.tool == "diagnose" and HANDLE.fullmatch(str(named.get("log", ""))):
        named = {"resume": named.pop("log"), **named}
    for name, value in named.items():
        words += _option(name, value)
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    """The words of one option; it is repeated for each item of a mapping or list."""
    option = OPTION_NAMES.get(name, (f"--{command_name(name)}",))[0]
    if name in PAIRS:
        return [option, *value]
    if name in COMMANDS:
        return [option, shlex.join(value)]
    if isinstance(value, bool):
        return [option if value else f"--no-{command_name(name)}"]
    if isinstance(value, Mapping):
        items = [f"{key}={item}" for key, item in value.items()]
    elif isinstance(value, list | tuple):
        structured = any(isinstance(item, Mapping) for item in value)
        items = [json.dumps(value)] if structured else [str(item) for item in value]
    else:
        items = [str(value)]
    return [word for item in items for word in (option, item)]
