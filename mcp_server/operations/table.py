"""The operations: what each calls, which of them the server lists, and how a shell spells them.

Tools are imported when they are called, so that the server starts fast. Arguments are checked in a thread,
because this opens archives and must not delay other tool calls.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from anyio.to_thread import run_sync as in_thread

from mcp_server.errors import ProblemError, argument, here, option_of
from mcp_server.model import (
    Attached,
    CostSymptom,
    ExportedWorkload,
    NextStep,
    PackageWorkload,
    Record,
    Workload,
)
from mcp_server.operations import arguments as args
from mcp_server.operations import workload as checked

_declared: list[args.Operation] = []


def operation(
    arguments: type[args.Arguments],
    *,
    title: str,
    description: str,
    hints: args.Hints = args.RUNS_USER_CODE,
    examples: tuple[str, ...] = (),
) -> Callable[[args.Call], args.Call]:
    """Declare the function as the tool and the command with its name."""

    def declare(call: args.Call) -> args.Call:
        _declared.append(args.Operation(call.__name__, title, description, arguments, hints, call, examples))
        return call

    return declare


@operation(
    args.DiagnoseArguments,
    title="Find the cause of a failure",
    description="Runs a failing script, package, exported program or command, and finds the cause. Returns a "
    "verdict: the part at fault (input, kernel, constant, package, toolchain, ...), confidence, evidence and "
    "the fix. Start here. Takes seconds to minutes. If not proven, do its next steps.",
    examples=(
        "aoti-debug diagnose serve.py -- --batch 8",
        "aoti-debug diagnose model.pt2 --inputs batch.pt --json",
        "aoti-debug diagnose model.pt2 -i "
        """'[{"shape": [8, 64], "dtype": "int64", "low": 0, "high": 9}]'""",
        "aoti-debug diagnose ./cpp_host model.pt2",
        "aoti-debug diagnose --pid 1234",
        "aoti-debug diagnose --log crash.log",
    ),
)
async def diagnose(context: args.Context, given: args.DiagnoseArguments) -> Record:
    from mcp_server.diagnosis.diagnose import diagnose as step

    if given.pid:
        return await diagnose_process(context, given)
    log = checked.optional_file("log", given.log)
    workload = None
    if checked.chosen_kinds(given) or log is None:
        workload = await in_thread(checked.workload_of, given)
    if given.recording:
        return await diagnose_recorded(context, given, workload)
    symptom = checked.symptom_of(given, workload)
    if (cost := checked.cost_symptom(given)) is not None:
        return await diagnose_slow(context, given, cost, workload)
    return await step(
        context, workload, log=log, budget_s=given.budget_s, symptom=symptom, in_place=given.in_place
    )


async def diagnose_process(context: args.Context, given: args.DiagnoseArguments) -> Record:
    """Diagnose a running process. Raise ProblemError if more than its package is given."""
    from mcp_server.diagnosis.diagnose import diagnose as step

    if [kind for kind in checked.chosen_kinds(given) if kind != "package"] or given.inputs or given.recording:
        allowed = f"aoti-debug diagnose --pid {given.pid}, with the package that it has loaded"
        what = "`pid` cannot be combined with inputs or something else to run"
        raise ProblemError(what, value=str(given.pid), allowed=allowed)
    package = await in_thread(checked.package_file, given.package, here()) if given.package else None
    return await step(
        context, None, attached=Attached(pid=given.pid, package=package), budget_s=given.budget_s
    )


async def diagnose_slow(
    context: args.Context, given: args.DiagnoseArguments, symptom: CostSymptom, workload: Workload | None
) -> Record:
    """Find where the time of a call, a load or a build goes, if nothing fails."""
    from mcp_server.cost.diagnose import diagnose_cost

    exported = checked.exported_file(given.exported, checked.folder_of(given)) if given.exported else None
    return await diagnose_cost(context, workload, exported, symptom, given.budget_s)


async def diagnose_recorded(
    context: args.Context, given: args.DiagnoseArguments, workload: Workload | None
) -> Record:
    """Diagnose a call that `record` kept. Raise ProblemError if the package that it calls is not given."""
    from mcp_server.diagnosis.diagnose import diagnose_recording

    if not isinstance(workload, PackageWorkload) or workload.inputs is not None:
        allowed = "aoti-debug diagnose model.pt2 --recording FOLDER_OR_CORE"
        raise ProblemError(
            "a recording needs its package, and no inputs", value=given.recording, allowed=allowed
        )
    folder = checked.absolute(given.recording, checked.folder_of(given))
    symptom = checked.symptom_of(given, workload)
    return await diagnose_recording(context, folder, workload, budget_s=given.budget_s, symptom=symptom)


@operation(
    args.ExplainArguments,
    title="Explain an error message or log",
    description="Explains an error text or log without running anything. Names the root error, its family "
    "and fields, what it does not prove, the guide to read, and the next call. Under 1 s for most logs.",
    hints=args.READS,
    examples=(
        "aoti-debug explain-error --log crash.log",
        "aoti-debug explain-error --text 'index out of bounds: 0 <= tmp4 < ks1' --package model.pt2",
    ),
)
async def explain_error(context: args.Context, given: args.ExplainArguments) -> Record:
    from mcp_server.tools.explain_error import explain_error as step

    return await step(
        context,
        text=given.text,
        log=checked.optional_file("log", given.log),
        package=await in_thread(checked.package_file, given.package, here()) if given.package else None,
        model_name=given.model_name,
    )


@operation(
    args.CheckArguments,
    title="Check that machine, package and inputs fit",
    description="Checks before anything runs that machine, package and inputs fit: GPUs, driver, torch, "
    "compiler, arch, ISA, and the device, dtype, rank, size, stride, count and order of inputs. Use it first "
    "for wrong devices, dtypes, shapes and for load errors. Without a package, it checks the machine. 2-10 "
    "s. Next: diagnose, or fix the first mismatch.",
    hints=args.READS,
    examples=("aoti-debug check-devices model.pt2 --inputs batch.pt", "aoti-debug check-devices"),
)
async def check_devices(context: args.Context, given: args.CheckArguments) -> Record:
    from mcp_server.tools.check_devices import check_devices as step

    if given.inputs and not given.package:
        raise ProblemError("inputs are given without a package", allowed="`inputs` together with `package`")
    return await step(context, await in_thread(checked.package_workload, given) if given.package else None)


@operation(
    args.InspectArguments,
    title="Show inputs, kernels and weights of a package",
    description="Shows what a .pt2 package contains, without running it. Lists inputs with ranges, launches "
    "with arguments, dataflow, weights and model lines, or answers one question in full (launch, kernel, ... "
    "assertion). For an `index out of bounds` text, it says which launch and input are meant. About 1 s.",
    hints=args.READS,
    examples=(
        "aoti-debug inspect-package model.pt2",
        "aoti-debug inspect-package model.pt2 --assertion 'index out of bounds: 0 <= tmp4 < ks1'",
        "aoti-debug inspect-package model.pt2 --location model.py:42",
    ),
)
async def inspect_package(_context: args.Context, given: args.InspectArguments) -> Record:
    from mcp_server.tools.inspect_package import inspect_package as step

    return await step(
        await in_thread(checked.package_file, given.package, here()),
        question_of(given),
        model_name=given.model_name,
        offset=given.offset,
    )


SUBJECTS = ("launch", "kernel", "buffer", "input", "constant", "location", "assertion")


def question_of(given: args.InspectArguments) -> dict[str, str | int]:
    """The question as {subject: value}; {} asks for the overview.

    Raise ProblemError for several questions; only an assertion may come with the kernel that printed it.
    """
    asked = {name: getattr(given, name) for name in SUBJECTS if getattr(given, name) not in ("", -1)}
    if len(asked) > 1 and set(asked) != {"assertion", "kernel"}:
        allowed = "one of " + ", ".join(SUBJECTS)
        raise ProblemError("more than one question", value=", ".join(asked), allowed=allowed)
    return asked


@operation(
    args.RepeatArguments,
    title="Repeat a run and count how it fails",
    description="Runs a workload several times, each time in a new process with blocking launches and input "
    "checks, and counts how it fails. Says clean, stable, flaky or varying, and gives each run's root error. "
    "Use it for intermittent crashes. Next: diagnose.",
    examples=("aoti-debug run-deterministic model.pt2 --inputs batch.pt --repeats 5",),
)
async def run_deterministic(context: args.Context, given: args.RepeatArguments) -> Record:
    from mcp_server.tools.run_deterministic import run_deterministic as step

    return await step(context, await in_thread(checked.workload_of, given), repeats=given.repeats)


@operation(
    args.DumpArguments,
    title="Show the values that kernels read and wrote",
    description="Runs a package once and shows what launches read and wrote (range, NaN, Inf, index against "
    "bound). Names the first bad value, and the launch that made it. Use it for NaN, wrong values, the index "
    "behind an assertion. Needs inputs. 5-30 s. Next: fix the producer, or diagnose.",
    examples=("aoti-debug dump-kernel-io model.pt2 --inputs batch.pt --stop-at-first-bad",),
)
async def dump_kernel_io(context: args.Context, given: args.DumpArguments) -> Record:
    from mcp_server.tools.dump_kernel_io import dump_kernel_io as step

    if not given.package:
        raise ProblemError("no package given", allowed="a package, and inputs of a call")
    return await step(
        context,
        await in_thread(checked.package_workload, given),
        launches=given.launches,
        kernels=given.kernels,
        buffers=given.buffers,
        save=given.save,
        stop_at_first_bad=given.stop_at_first_bad,
    )


@operation(
    args.DecompileArguments,
    title="Read a package as a PyTorch program",
    description="Turns a package into a PyTorch program, without the model's source. Writes its weights, and "
    "model.py with a function or call for each launch. With inputs, it runs both and says whether they "
    "agree, as a whole and launch by launch. Read it instead of the generated code. 1-30 s. Next: the same, "
    "with `launches` set to the suspect launch.",
    examples=(
        "aoti-debug decompile model.pt2 --inputs batch.pt --out program",
        "aoti-debug decompile model.pt2 --launches 12",
    ),
)
async def decompile(context: args.Context, given: args.DecompileArguments) -> Record:
    from mcp_server.tools.decompile import decompile as step

    workload = await in_thread(checked.package_workload, given)
    out = checked.absolute(given.out, workload.cwd or here()) if given.out else None
    return await step(context, workload, out=out, launches=given.launches)


@operation(
    args.LocateArguments,
    title="Find the kernel behind a bad memory access",
    description="Runs the failing call of a package, script or command under a memory checker. Names the "
    "launch, argument, access, generated line, model line and producer. Use it for bad accesses, segfaults, "
    "corruption, silent bad reads. A package needs inputs; a C++ host (command) needs its package. 10-90 s. "
    "Next: dump_kernel_io of the producer, or the fix.",
    examples=(
        "aoti-debug locate-fault model.pt2 --inputs batch.pt",
        "aoti-debug locate-fault serve.py -- --batch 8",
        "aoti-debug locate-fault ./cpp_host model.pt2 --package model.pt2",
    ),
)
async def locate_fault(context: args.Context, given: args.LocateArguments) -> Record:
    from mcp_server.tools.locate_fault import locate_fault as step
    from mcp_server.tools.locate_fault import locate_in_program

    package = None
    if given.command and given.package:  # `package` is the one that the host `command` loads
        package = await in_thread(checked.package_file, given.package, checked.folder_of(given))
        given = given.model_copy(update={"package": ""})
    workload = await in_thread(checked.workload_of, given)
    assert not isinstance(workload, ExportedWorkload), "there is no such argument"
    if isinstance(workload, PackageWorkload):
        return await step(context, workload, tool=given.tool)
    return await locate_in_program(context, workload, package=package, tool=given.tool)


@operation(
    args.TraceArguments,
    title="List the kernel launches of a call",
    description="Lists the launches of a call with their arguments, and the launch at which it ended. For "
    "this, it rebuilds the package with a probe at every launch (no model source needed) and runs it. Use it "
    "for crashes and hangs that name no kernel. Without inputs, it returns the instrumented package and "
    "environment for a C++ host. 5-40 s. Next: inspect_package with that launch.",
    examples=("aoti-debug trace-launches model.pt2 --inputs batch.pt",),
)
async def trace_launches(context: args.Context, given: args.TraceArguments) -> Record:
    from mcp_server.tools.trace_launches import trace_launches as step

    return await step(context, await in_thread(checked.package_workload, given), calls=given.calls)


@operation(
    args.TryArguments,
    title="Test a change on the failing call",
    description="Makes a package's failing call with one change, and without it before and after. It can "
    "change an input element, constant, launch or expression of a kernel. Says whether the failure is gone, "
    "different or the same, and which healthy outputs changed. Needs no model source. Use it to verify a "
    "fix. 3-30 s. Next: apply the fix, or diagnose.",
    examples=(
        "aoti-debug try-fix model.pt2 --inputs batch.pt --change 'args[1]: clamp 0 9 where > 9'",
        "aoti-debug try-fix model.pt2 -i batch.pt --kernel cpp_fused_0 --replace 'tmp3 - tmp5' 'tmp5 - tmp3'",
        "aoti-debug try-fix model.pt2 -i batch.pt --launch 3 --as finite-mask --expect right.pt",
    ),
)
async def try_fix(context: args.Context, given: args.TryArguments) -> Record:
    from mcp_server.diagnosis.try_fix import try_fix as step

    base = checked.folder_of(given)
    files = {name: getattr(given, name) for name in ("exported", "constants", "expect", "edit")}
    found = {name: str(checked.file(name, text, base)) for name, text in files.items() if text}
    workload = await in_thread(checked.package_workload, given)
    return await step(context, workload, given.model_copy(update=found))


@operation(
    args.PairArguments,
    title="Find the kernels that differ from eager mode",
    description="Compares each launch of a package with its exported program in eager mode, on correct "
    "inputs. Names the launches that differ by more than rounding. Use it for wrong numbers. 5-60 s. Next: "
    "inspect_package, or reduce.",
    examples=("aoti-debug compare-with-eager model.pt2 --exported program.pt2 --inputs batch.pt",),
)
async def compare_with_eager(context: args.Context, given: args.PairArguments) -> Record:
    from mcp_server.tools.compare_with_eager import compare_with_eager as step

    if not (given.script or given.exported):
        raise ProblemError(
            "nothing to compare with", allowed="a script, or `exported` with the file of torch.export.save"
        )
    workload = await in_thread(checked.paired_model, given)
    exported = None
    if isinstance(workload, PackageWorkload):
        exported = await in_thread(checked.exported_file, given.exported, checked.folder_of(given))
    return await step(context, workload, exported)


@operation(
    args.CompileArguments,
    title="Compile with debugging flags",
    description="Compiles an exported program with code-generation flags (NaN checks, value printer, "
    "minifier, provenance, asserts). Returns the new package, its kernels, and warnings. 10-90 s. Next: "
    "run_deterministic or dump_kernel_io with the package.",
    examples=("aoti-debug compile-with-flags model.exported.pt2 --flag TORCHINDUCTOR_NAN_ASSERTS=1",),
)
async def compile_with_flags(context: args.Context, given: args.CompileArguments) -> Record:
    from mcp_server.tools.compile_with_flags import compile_with_flags as step

    return await step(context, await in_thread(checked.exported_workload, given), given.flags)


@operation(
    args.ReduceArguments,
    title="Cut a failing program down to a small script",
    description="Reduces a failing program to the few operators that still fail in the same way (crash, "
    "error, NaN, wrong output). Returns a script that needs only torch and was seen to fail. Use it for bug "
    "reports and compiler faults. 1-10 min. Next: run the script.",
    examples=("aoti-debug reduce --exported program.pt2 --inputs batch.pt", "aoti-debug reduce serve.py"),
)
async def reduce(context: args.Context, given: args.ReduceArguments) -> Record:
    from mcp_server.tools.reduce import reduce as step

    if given.exported:  # reduce the program, and ignore the package, which has no graph
        given = given.model_copy(update={"package": ""})
    workload = await in_thread(checked.paired_model, given)
    return await step(context, workload, budget_s=given.budget_s)


@operation(
    args.BisectArguments,
    title="Name the compiler pass behind wrong code",
    description="Names the step of the compiler at fault: a graph pass, lowering, decomposition or option. "
    "Use it if a program crashes or gives wrong numbers, and eager mode is correct. Switches the steps off "
    "in a reduced program until the failure disappears. Returns a workaround that was run, and a text for "
    "PyTorch's issue tracker. 1-10 min. Next: apply the workaround.",
    examples=("aoti-debug bisect --exported program.pt2 --inputs batch.pt", "aoti-debug bisect serve.py"),
)
async def bisect(context: args.Context, given: args.BisectArguments) -> Record:
    from mcp_server.tools.bisect import bisect as step

    alone = given.model_copy(update={"package": ""}) if given.exported else given
    workload = await in_thread(checked.paired_model, alone)
    if isinstance(workload, PackageWorkload):
        raise ProblemError(
            "a package cannot be compiled again: it does not hold the program that it was compiled from",
            value=str(workload.package),
            allowed=f"{argument('exported')} with that program (torch.export.save), or a script",
        )
    return await step(context, workload, budget_s=given.budget_s)


@operation(
    args.RecordArguments,
    title="Make a package that records its calls",
    description="Writes a package (or a library to preload) that records the latest calls of each thread. It "
    "keeps all sizes, values if they cost little, and all inputs of calls that fail. Use it for hosts (also "
    "in C++) whose failure cannot be repeated. 1-2 s. Next: diagnose with `recording`.",
    examples=(
        "aoti-debug record model.pt2 --out recorded.pt2",
        "aoti-debug record --preload -- ./host model.pt2",
        "aoti-debug record recorded.pt2 --remove --out plain.pt2",
    ),
)
async def record(context: args.Context, given: args.RecordArguments) -> Record:
    from mcp_server.tools.record import options_of, preload, remove
    from mcp_server.tools.record import record as step

    folder = here()
    out = checked.absolute(given.out, folder) if given.out else None
    directory = checked.absolute(given.directory, folder) if given.directory else None
    options = options_of(directory, given.mode, given.ring_mb, given.budget_mb)
    if not given.package:
        return await preload(context, out, options)
    package = await in_thread(checked.package_file, given.package, folder)
    return await (remove(package, out) if given.remove else step(context, package, out, options))


@operation(
    args.RecordingsArguments,
    title="List recorded calls",
    description="Lists what the recorder kept, even while the host runs. Shows the processes, calls that "
    "failed or are in flight, and which values were kept. Next: diagnose with `recording`.",
    hints=args.READS,
    examples=("aoti-debug recordings /dev/shm/aoti-debug-recordings-1000",),
)
async def recordings(_context: args.Context, given: args.RecordingsArguments) -> Record:
    from mcp_server.tools.record import recordings as step

    return await step(checked.absolute(given.folder, here()))


@operation(
    args.PostMortemArguments,
    title="Look at core files",
    description="Reads from a core file where the threads of a dead process were in a package. Shows the "
    "signal, launch, kernel, generated line, model line, and inputs in memory. Groups a folder of core files "
    "by signal, kernel and line. Runs nothing. 2-10 s. Next: diagnose with `recording`.",
    hints=args.READS,
    examples=(
        "aoti-debug post-mortem core.1234 --package model.pt2",
        "aoti-debug post-mortem /cores --package model.pt2",
    ),
)
async def post_mortem(context: args.Context, given: args.PostMortemArguments) -> Record:
    from mcp_server.tools.post_mortem import post_mortem as step
    from mcp_server.tools.post_mortem import post_mortem_of_folder

    folder = here()
    if not given.package:
        raise ProblemError(
            "the package that the process had loaded is needed", allowed="`package` with a .pt2 file"
        )
    package = await in_thread(checked.package_file, given.package, folder)
    core = checked.absolute(given.core, folder)
    return await (post_mortem_of_folder if core.is_dir() else step)(context, package, core)


OPERATIONS = tuple(_declared)
DIAGNOSE = OPERATIONS[0]
CORE = frozenset(
    {
        *("diagnose", "explain_error", "check_devices", "compile_with_flags"),
        *("run_deterministic", "dump_kernel_io", "try_fix"),
    }
)
"""The tools listed by default: every listed tool costs tokens in every session of an agent."""
RUN_TOOL = "run_tool"  # the tool that calls the others


def as_listed(step: NextStep) -> NextStep:
    """The step as a call that an MCP client can make, whichever tools it lists."""
    if step.tool in CORE:
        return step
    called = {"tool": step.tool, "arguments": step.arguments}
    return step.model_copy(update={"tool": RUN_TOOL, "arguments": called})


def command_name(tool: str) -> str:
    return tool.replace("_", "-")


# Arguments with names that no library uses: in a text, such a name always means the argument.
_OPTIONS = ("budget_s", "timeout_s", "extra_imports")
_QUOTED = re.compile(
    "`(expect|exported|inputs|package|script|check|pid|recording|launches|symptom|changes|kernel|replace|launch"
    "|how|edit|constants|set_env|remove|ring_mb)`"
)
_NAMES = re.compile(rf"(?<![\w-])({'|'.join((*_OPTIONS, *(o.name for o in OPERATIONS if '_' in o.name)))})\b")


def in_shell_words(text: str) -> str:
    """Rewrite tool names as commands and arguments as options: `inspect-package`, --budget-s."""
    text = _NAMES.sub(lambda found: ("--" if found[1] in _OPTIONS else "") + command_name(found[1]), text)
    return _QUOTED.sub(lambda found: option_of(found[1]), text)


def _target(arguments: Mapping[str, Any], fields: Mapping[str, object]) -> list[str]:
    """The argument that is given as TARGET: a script or package, by its suffix. Empty if none."""
    kinds = {"script": ".py", "package": ".pt2"} if "script" in fields else {}
    return [name for name, end in kinds.items() if str(arguments.get(name, "")).endswith(end)][:1]


def command_line(step: NextStep) -> str:
    """The shell command equivalent to a suggested tool call. Required arguments are positional."""
    fields = next((op.arguments.model_fields for op in OPERATIONS if op.name == step.tool), {})
    required = sorted(name for name in step.arguments if name in fields and fields[name].is_required())
    target = [] if required or "script_args" in step.arguments else _target(step.arguments, fields)
    first = [*required, *target]
    words = ["aoti-debug", command_name(step.tool), *(str(step.arguments[name]) for name in first)]
    named = {name: value for name, value in step.arguments.items() if name not in first}
    if step.tool == "diagnose" and args.HANDLE.fullmatch(str(named.get("log", ""))):
        named = {"resume": named.pop("log"), **named}
    host = ["--", *map(str, command)] if isinstance(command := named.pop("command", None), list) else []
    host += ["--preload"] if step.tool == "record" and not named else []
    return shlex.join([*words, *args.option_words(named), *host])
