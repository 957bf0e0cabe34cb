"""What to call next: existing tools, commands and reductions, with their arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_server.diagnosis.causes.compiler import generated_suspect
from mcp_server.diagnosis.program_seen import Seen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.errors import argument
from mcp_server.logs.facts import LogFacts
from mcp_server.model import (
    Category,
    CommandWorkload,
    ExportedWorkload,
    NextStep,
    PackageWorkload,
    ScriptWorkload,
    Workload,
)
from mcp_server.operations.arguments import HANDLE, ReduceArguments, option_words
from mcp_server.plurals import capitalized, counted, quoted
from mcp_server.runtime.context import WORKER_MAIN
from mcp_server.runtime.failure import BudgetTooShort
from mcp_server.tools.explain_error import INPUTS, PACKAGE, PROGRAM, program_of
from mcp_server.tools.running_process import ProcessSeen

Arguments = dict[str, Any]  # a tool's arguments as JSON


def call_arguments(case: DiagnosisState) -> Arguments:
    """Package, inputs, model and environment of the suspect call. Empty if no files hold them."""
    known = case.call is not None and case.inputs is not None
    return workload_arguments(case.package_call) if known else {}


# Arguments in their order in commands.
SPELLED = (
    *("script", "script_args", "command", "exported", "package", "model_name", "device_index", "inputs"),
    *("extra_imports", "cwd", "env", "python"),
)


def workload_arguments(workload: Workload) -> Arguments:
    """The flat tool arguments that name this workload, without empty values and defaults."""
    found = workload.model_dump(mode="json", exclude_none=True)
    found |= {"script_args": found.get("args"), "command": found.get("argv")}
    if isinstance(workload, PackageWorkload | ExportedWorkload):
        found["cwd"] = None  # all paths are absolute
    if isinstance(workload, PackageWorkload):
        found["model_name"] = workload.model_name if workload.model_name != "model" else ""
        found["device_index"] = max(workload.device_index, 0)  # -1 also means the first device
    return {name: found[name] for name in SPELLED if found.get(name)}


OF_GRAPH: frozenset[Category] = frozenset({"compile_failure", "wrong_output", "nan_or_inf"})
TAKEN = ReduceArguments.model_fields.keys()


def reduction(best: Suspect, case: DiagnosisState) -> list[NextStep]:
    """The `reduce` or `bisect` call that reduces this failure, if any."""
    of_value = any(root.family.id == "data_dependent" for _, root in case.own_roots)  # only a new model helps
    operators = _operators(case) if best.category in OF_GRAPH and not of_value else {}
    found = case.bisected is not None and bool(case.bisected[1].decisions)
    searched = found or "bisect" in case.done
    if operators and not searched and generated_suspect([best], case) is not None:
        why = "find the compiler pass at fault, and run a workaround (several minutes)"
        return [NextStep(why=why, tool="bisect", arguments=operators)]
    if operators:
        why = "cut the program down to the operators that still fail in this way"
        return [NextStep(why=why, tool="reduce", arguments=operators)]
    return []


def _operators(case: DiagnosisState) -> Arguments:
    """The arguments that name the program to reduce: a script, or an exported program. Empty if none."""
    assert case.workload is not None
    whole = workload_arguments(case.workload)
    # If every export of a script failed, there is no program to reduce.
    compiles = case.capture is None or any(made.exported is not None for made in case.captured.compiles)
    if "package" not in whole and whole.keys() <= TAKEN and compiles:
        return whole
    program, call = case.program_path, call_arguments(case)
    if program is None or call.keys() - TAKEN:
        return {}
    return {"exported": str(program), **{name: call[name] for name in call if name != "package"}}


# Arguments of a call that `compare_with_eager` takes in addition to package and program.
COMPARED = ("inputs", "extra_imports", "python")

# The tool that shows most about an unsettled category, and why to call it.
TOOLS: dict[Category, tuple[str, str]] = {
    "device_mismatch": ("check_devices", "compare the inputs' devices with the package"),
    "input_mismatch": ("check_devices", "compare every input with what the package was compiled for"),
    "shape_out_of_range": ("check_devices", "compare every dimension with its compiled range"),
    "index_out_of_bounds": ("dump_kernel_io", "show the index, its bound and the input that it comes from"),
    "illegal_memory_access": ("locate_fault", "find the launch and the line of the bad access"),
    "nan_or_inf": ("dump_kernel_io", "find the first launch whose output is not finite"),
    "wrong_output": ("dump_kernel_io", "show what each launch reads and writes"),
    "custom_op": (
        "run_deterministic",
        "run with the input checks, which compare the output of each operator with its fake function",
    ),
    "concurrency": ("run_deterministic", "count how often it fails, before and after the fix"),
    "hang": ("trace_launches", "find the last launch that started"),
    "toolchain": ("check_devices", "check the compiler and the libraries"),
    "environment": ("check_devices", "check driver, devices and tools"),
    "out_of_memory": ("check_devices", "check free memory"),
}

REPEATED = "find out whether it fails every time, and with which error first"
NEEDS_INPUTS = frozenset({"dump_kernel_io", "locate_fault"})

# For each tool, the observation that already shows its result.
SHOWN_BY = {
    "check_devices": "compare_inputs",
    "dump_kernel_io": "watch_launches",
    "locate_fault": "locate_fault",
    "trace_launches": "trace_launches",
    "run_deterministic": "repeat_call",
}

# Tools that take a script or a command as well as a package.
ANY_WORKLOAD = frozenset({"run_deterministic", "diagnose"})


def next_steps(best: Suspect | None, case: DiagnosisState) -> list[NextStep]:
    """Tool calls that would settle the category, or show more about it."""
    if case.process is not None:
        return _of_process(case.process) if case.attached is not None else []
    if case.workload is None:
        why = "to prove the cause, let diagnose run the program that fails"
        program = (program_of(case.log) if case.log is not None else {}) or {"script": PROGRAM}
        return [NextStep(why=why, tool="diagnose", arguments=program)]
    inside = best is not None and best.only_in_program  # a call made outside the program shows nothing
    arguments = (not inside and call_arguments(case)) or workload_arguments(case.workload)
    if best is not None and best.category == "cost":
        return []
    if unseen_symptom(case):
        return _to_see_the_symptom(arguments, case)
    if best is None:
        return _without_suspect(arguments, case.workload, case)
    steps = _of_suspect(best, arguments, case.workload, case)
    return [*_of_category(best, arguments, case), *reduction(best, case)] if steps is None else steps


def _repeated(arguments: Arguments, case: DiagnosisState) -> NextStep:
    if case.workload is not None and case.failure_of("plain") == "none":
        arguments = workload_arguments(case.workload)
    return NextStep(why=REPEATED, tool="run_deterministic", arguments=arguments)


def _without_suspect(arguments: Arguments, workload: Workload, case: DiagnosisState) -> list[NextStep]:
    """Make the failing call if it was not made. If the call is healthy, look for another symptom."""
    if _only_built(case):
        given = {**arguments, "inputs": INPUTS}
        return [NextStep(why="call it with the inputs that fail", tool="diagnose", arguments=given)]
    if not case.runs:
        return _with_other_argument(arguments, case)
    if not_called(case):
        why = "in your program, add torch.save([x1, x2], FILE) right before the failing call; then run"
        return [NextStep(why=why, tool="diagnose", arguments={**arguments, "inputs": INPUTS})]
    if case.never_reached and case.ended_well:
        why = "diagnose the program that calls the package"
        return [NextStep(why=why, tool="diagnose", arguments={"script": PROGRAM})]
    if not case.healthy:
        return [_repeated(arguments, case)]
    steps = []
    if case.symptom.seen is None and case.outputs_nan:
        steps = [_with_symptom("nan", "if the NaN is not meant, find its origin", workload)]
    elif isinstance(workload, PackageWorkload):
        steps = [_program_step("if calls fail only inside your program, diagnose that program", case)]
    if case.symptom.seen is None and isinstance(workload, PackageWorkload):
        steps.append(_with_symptom("slow", "if a call is too slow, find what costs time", workload))
    return steps


def _of_suspect(
    best: Suspect, arguments: Arguments, workload: Workload, case: DiagnosisState
) -> list[NextStep] | None:
    """The steps for this suspect. None: the tool of its category shows most."""
    if best.level is CausalLevel.SYMPTOM and case.symptom.expect is not None and "package" in arguments:
        # Outputs are wrong for no visible reason. The exported program or the right weights show the cause.
        step = _with_weights("try the intended weights", arguments, expect=str(case.symptom.expect))
        return [*_readings(arguments, case), step]
    if best.only_in_program and best.observed and best.category == "wrong_output":
        return []  # the call is right when made alone
    if best.weak and case.outputs_nonfinite and case.symptom.seen is None:
        return [_with_symptom("nan", "prove it, if this is a fault", workload)]
    if best.category == "hang" and best.guilty.kind == "script":
        # The process hangs outside the package, where no tool looks.
        more = {**workload_arguments(workload), "timeout_s": min(86_400.0, 4 * workload.timeout_s)}
        return [NextStep(why="see whether it ends with more time", tool="diagnose", arguments=more)]
    if best.category == "constants" and "package" in arguments and "inputs" in arguments:
        alone = case.failure_of("plain") != "differs"  # whether the package fails by itself
        expect = {} if alone else {"expect": str(case.symptom.expect or RIGHT_OUTPUTS)}
        why = "save the intended weights with torch.save, and repeat the call with them"
        return [_with_weights(why, arguments, **expect)]
    if best.category == "wrong_output" and best.guilty.kind == "script":
        return []  # the package agrees with its program, so no launch or operator is wrong
    repeats = TOOLS.get(best.category, ("", ""))[0] == "run_deterministic"
    return [] if repeats and case.call is None and not case.calls else None  # there is nothing to repeat


def _with_weights(why: str, arguments: Arguments, **expect: str) -> NextStep:
    """Try the call with other weights, as written by torch.save(dict(program.state_dict), FILE)."""
    arguments = {**_of_call(arguments), "constants": STATE_DICT, **expect}
    return NextStep(why=why, tool="try_fix", arguments=arguments)


def _of_category(best: Suspect, arguments: Arguments, case: DiagnosisState) -> list[NextStep]:
    """Call the tool that shows most about the category, unless its result is known."""
    tool, why = TOOLS.get(best.category, ("", ""))
    known = bool(case.wrong_launches) and tool == "dump_kernel_io"
    if not tool or known or SHOWN_BY.get(tool) in case.done:
        return []
    if tool not in ANY_WORKLOAD and "package" not in arguments:
        return [_repeated(arguments, case)]
    if tool in NEEDS_INPUTS and "inputs" not in arguments:
        arguments = {**arguments, "inputs": INPUTS}
    return [NextStep(why=why, tool=tool, arguments=arguments)]


def _program_step(why: str, case: DiagnosisState) -> NextStep:
    """Diagnose the program that makes the call: the recorded host if it is known, else a placeholder."""
    host = case.taken.program if case.taken is not None else None
    if host is None or not isinstance(case.workload, PackageWorkload):
        return NextStep(why=why, tool="diagnose", arguments={"script": PROGRAM})
    command = [str(host), str(case.workload.package)]
    return NextStep(why=f"{why} with its arguments", tool="diagnose", arguments={"command": command})


def settling(outcome: str, case: DiagnosisState) -> list[NextStep]:
    """What to do about an inconclusive verdict that has no other next step. Empty for other verdicts."""
    if outcome != "inconclusive" or cut_off(case) or case.stopped:
        return []
    if case.workload is None or not case.runs:
        return [NextStep(why="see what is missing on this machine", tool="check_devices", arguments={})]
    arguments = call_arguments(case) or workload_arguments(case.workload)
    why = "repeat it ten times, in case it fails only sometimes"
    return [NextStep(why=why, tool="run_deterministic", arguments={**arguments, "repeats": 10})]


def _with_symptom(symptom: str, why: str, workload: Workload) -> NextStep:
    """Diagnose the same workload again with this symptom."""
    arguments = {**workload_arguments(workload), "symptom": symptom}
    return NextStep(why=why, tool="diagnose", arguments=arguments)


def continued(step: NextStep, case: DiagnosisState, job: str) -> NextStep:
    """Let a step that diagnoses the same workload continue this job, which repeats no finished run."""
    whole = workload_arguments(case.workload) if case.workload is not None else {}
    same = whole and step.tool == "diagnose" and whole.items() <= step.arguments.items()
    if not same or not HANDLE.fullmatch(job):
        return step
    more = {name: value for name, value in step.arguments.items() if name not in whole}
    return step.model_copy(update={"arguments": {"log": job, **more}})


def _only_built(case: DiagnosisState) -> bool:
    """Whether an exported program compiled, and no inputs were given for a call."""
    workload = case.workload
    return isinstance(workload, ExportedWorkload) and workload.inputs is None and not case.failed


def not_called(case: DiagnosisState) -> bool:
    """Whether the given file compiled or loaded, and no inputs were given for a call."""
    return _only_built(case) or (case.only_loaded and not case.failed and case.taken is None)


def _of_process(process: ProcessSeen) -> list[NextStep]:
    """Diagnose the open call from the recorder's ring, or record the calls of the next process."""
    path, why, tool = str(process.view.package.path), "record the calls of the next process: ", "record"
    arguments: Arguments = {"package": path, "out": "recorded.pt2"}
    if process.ring is not None:
        why, tool = "make the call that is in flight again, from the recorder's ring", "diagnose"
        arguments = {"package": path, "recording": str(process.ring)}
    elif path.endswith(".pt2"):
        why += "deploy this copy of the package"
    else:  # the unpacked package ends with the process
        why, arguments = f"{why}preload the recorder in it, or give `record` the .pt2", {}
    return [NextStep(why=why, tool=tool, arguments=arguments)]


# Placeholders for an argument that has to be corrected.
PYTHON = "path/to/python"
OTHERS = {"python": PYTHON, "inputs": INPUTS, "script": PROGRAM, "package": PACKAGE}


def no_torch(case: DiagnosisState) -> bool:
    """Whether nothing could be run because the interpreter has no torch."""
    return not case.runs and any("torch cannot be imported" in problem.what for problem in case.refused)


def _with_other_argument(arguments: Arguments, case: DiagnosisState) -> list[NextStep]:
    """The same diagnosis, with a placeholder for the argument that was rejected. Empty if unknown."""
    values = {str(problem.value) for problem in case.refused if problem.value is not None}
    named = next((name for name in OTHERS if str(arguments.get(name)) in values), "")
    if not named and case.workload is not None and case.workload.python is None:
        named = "python" if no_torch(case) else ""
    if not named:
        return []
    why = f"run it again with a correct {argument(named)}"
    return [NextStep(why=why, tool="diagnose", arguments={**arguments, named: OTHERS[named]})]


# The command that shows a step's evidence again, from the call. The package follows these words, as a target
# or as an option.
ON_THE_CALL = {
    "check_devices": ("check-devices", "--package"),
    "run": ("run-deterministic", "--repeats", "1", "--env", "AOTI_RUNTIME_CHECK_INPUTS=0"),
    "run_with_input_checks": ("run-deterministic", "--repeats", "1"),
    "look_at_indices": ("dump-kernel-io", "--stop-at-first-bad", "--package"),
    "dump_kernel_io": ("dump-kernel-io", "--stop-at-first-bad", "--package"),
    "trace_launches": ("trace-launches",),
    "decompile": ("decompile",),
    "locate_fault": ("locate-fault",),
}

# For each label of a run, the step whose command repeats the run.
RUNS = {
    "plain": "run",
    "checked": "run_with_input_checks",
    "command": "script",
    "alone": "script",
    "run_alone": "script",
    "fill_host_memory": "script",
}


def command_for(step: str, case: DiagnosisState) -> str:
    """The command that repeats a step or shows what it saw, if any."""
    step = RUNS.get(step, step)
    call, workload = case.call, case.workload
    arguments = call_arguments(case)
    if step in ON_THE_CALL:
        return _line(*ON_THE_CALL[step], *package_words(arguments)) if arguments else ""
    if step == "script":
        return _program(workload)
    if step == "repeat_call" and arguments:
        return _line("run-deterministic", *package_words(arguments))
    if step in ("compare_with_eager", "interpret") and case.program_path is not None and arguments:
        # Compare package and program, or the whole script if it updated constants before the call.
        if call is not None and call.updated:
            return _line("compare-with-eager", "--script", str(getattr(workload, "script", "")))
        options = {name: arguments[name] for name in COMPARED if name in arguments}
        pair = ("--package", arguments["package"], "--exported", str(case.program_path))
        return _line("compare-with-eager", *pair, *option_words(options))
    if step in ("inspect_package", "open_package") and call is not None:
        model = call.request.get("model_name", "model")
        named = ("--model-name", str(model)) if model != "model" else ()
        return _line("inspect-package", str(call.package), *named)
    if step == "bisect":
        program = _operators(case) if workload is not None else {}
        return _line("bisect", *option_words(program)) if program else ""
    if step == "look_at_process" and case.process is not None:
        at = case.attached
        return _line("diagnose", "--pid", str(at.pid)) if at is not None else _program(workload)
    if step == "read_log":
        plain = str(case.own_run.finished.output) if case.own_run is not None else ""
        log = case.log_source if case.log is not None else plain
        return _line("explain-error", "--log", log) if log else ""
    if step == "capture" and case.capture is not None:
        return f"cat {shlex.quote(str(case.capture.directory))}/capture-*.jsonl"
    runs = {
        "interpret": case.interpreted,
        "watch_operators": case.operators,
        "repeat_call": case.repeated_watched or case.repeated,
    }
    run = runs.get(step)
    if run is None:
        return ""
    # Send the same request to the worker again, with its report on the terminal.
    argv = [str(run.python), "-u", str(WORKER_MAIN), str(run.directory / "request.json"), "/dev/stdout"]
    return _in_environment(workload.env if workload else {}, argv)


def _line(*words: str) -> str:
    return shlex.join(["aoti-debug", *words])


def package_words(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments with a package as command words: the package, then options."""
    options = {name: value for name, value in arguments.items() if name != "package"}
    return (arguments["package"], *option_words(options))


def _program(workload: Workload | None) -> str:
    """The user's own program as it ran: in its directory, without the hook."""
    if isinstance(workload, ScriptWorkload):
        argv = [str(workload.python or "python"), str(workload.script), *workload.args]
    elif isinstance(workload, CommandWorkload):
        argv = workload.argv
    else:
        return ""
    line = _in_environment(workload.env, argv)
    return f"cd {shlex.quote(str(workload.cwd))} && {line}" if workload.cwd is not None else line


def _in_environment(env: Mapping[str, str], argv: Sequence[str]) -> str:
    """The command with these variables set."""
    variables = [f"{name}={value}" for name, value in env.items()]
    return shlex.join(["env", *variables, *argv] if variables else argv)


RIGHT_OUTPUTS = "path/to/outputs.pt"
EXPORTED = "path/to/program.pt2"
STATE_DICT = "path/to/state_dict.pt"

UNSEEN: dict[Seen, str] = {
    "wrong-output": "The call returns, but nothing says what its outputs should be. Give the correct "
    "outputs (`expect`), a command that judges them (`check`), or the exported program to "
    "compare_with_eager.",
    "nan": "No NaN or infinity was seen. Give the inputs or arguments that lead to one, or the program.",
    "crash": "Nothing crashed. Give inputs or arguments that cause the crash, or its log or core file.",
    "hang": "This run ended. Give the program and the arguments that hang, or the process id (`pid`) of a "
    "process that hangs now.",
    "memory": "This run had enough memory. Give the program, arguments or inputs with which it runs out.",
}


NEVER_REACHED = (
    "The program exited with code 0, and none of its Python processes compiled, loaded or called a package. "
    "Name the script or the package that fails. For a host in another language, give the package and the "
    "inputs of a call."
)


MOST_SAID = 200  # characters of an error text
FAILURES = {
    "exception": "raised {error}",
    "signal": "died{said}",
    "timeout": "{limit}",
    "out_of_memory": "ran out of memory{said}",
    "nonfinite": "returned NaN or infinities",
    "differs": "returned unexpected outputs",
}


def cut_off(case: DiagnosisState) -> bool:
    """Whether the budget ended the first run while it made progress."""
    return not case.runs and any(isinstance(problem, BudgetTooShort) for problem in case.refused)


def open_question(case: DiagnosisState) -> str:
    """What is still missing for a verdict."""
    if not case.runs and case.log is not None:
        return "Only a log was given."
    if not case.runs and case.refused:
        problem = case.refused[0]
        what = problem.what if problem.value is None else f"{problem.what}: {problem.value}"
        allowed = f" Expected: {problem.allowed}." if problem.allowed else ""
        return f"{capitalized(what)}.{allowed}"
    if not case.runs and case.notes:
        return f"Nothing could be run: {case.notes[0]}."
    if case.cut_short or case.stopped:
        return ""
    if case.only_loaded and case.taken is not None:
        return case.taken.open
    if not_called(case):
        what = "program compiles, but its package" if _only_built(case) else "package loads, but its model"
        return f"The {what} was not called."
    if case.never_reached and case.ended_well:
        return NEVER_REACHED
    return how_it_failed(case) or "No check found a cause."


def how_it_failed(case: DiagnosisState) -> str:
    """How the repeated call or else the user's program failed. Empty if neither did."""
    failed = next((run for run in (case.plain_run, case.script_run) if run and run.failure != "none"), None)
    if failed is None:
        return ""
    ended = failed.finished
    said = f": {quoted(failed.root.text, MOST_SAID).rstrip('.')}" if failed.root is not None else ""
    if not said and failed.failure == "signal":
        said = f" with {ended.signal}" + (f" ({ended.note})" if ended.note else "")
    error, limit = said.removeprefix(": ") or "an error", ended.note or "did not end in time"
    how = FAILURES[failed.failure].format(said=said, error=error, limit=limit)
    if failed is case.plain_run:
        return f"What is known: the call {how}."
    return f"What is known: the program {how}.{_outside_of_calls(case, failed.log)}"


def _outside_of_calls(case: DiagnosisState, log: LogFacts) -> str:
    """Say that a program died after its calls had returned, and how its suspect call behaves alone."""
    if not case.died_outside:
        return ""
    frames = [frame for stack in log.threads if stack.current for frame in stack.frames_of_user]
    at = f", at {frames[-1].file}:{frames[-1].line}" if frames else ""
    text = f" It died outside of the package{at}: {counted(len(case.calls), 'call')} had returned."
    alone = case.plain_run is not None and case.plain_run.failure == "none"
    return f"{text} The call returns when it is repeated alone." if alone else text


def _of_call(arguments: Arguments) -> Arguments:
    return {name: arguments[name] for name in ("package", *COMPARED) if name in arguments}


def _readings(arguments: Arguments, case: DiagnosisState) -> list[NextStep]:
    """Next steps for wrong outputs: the exported program or, without it, the package read as PyTorch."""
    why = "without the source, read the package as a PyTorch program; try_fix runs an edited copy of it"
    read = NextStep(why=why, tool="decompile", arguments={"package": arguments["package"]})
    return [_comparison(arguments), *([read] if case.program_path is None else [])]


def _comparison(arguments: Arguments) -> NextStep:
    """A call of `compare_with_eager`, for which the user must give the exported program."""
    return NextStep(
        why="compare each launch with the exported program",
        tool="compare_with_eager",
        arguments={**_of_call(arguments), "exported": EXPORTED},
    )


def unseen_symptom(case: DiagnosisState) -> str:
    """Say that a symptom was not seen, and ask for what may show it. Empty if it was seen or excluded."""
    seen = case.symptom.seen
    if case.taken is not None and case.taken.open and case.healthy:
        return case.taken.open
    if seen is None or not case.healthy:
        return ""
    plain = case.plain_run
    agrees = case.with_eager is not None and case.with_eager.outcome == "agrees"
    known_right = (plain is not None and plain.as_expected) or case.equals_eager or agrees
    if seen == "nan" and (case.nan_accepted or (plain is not None and plain.as_expected)):
        return ""
    if seen == "wrong-output" and known_right:
        return ""
    if seen == "nan" and case.finite_calls:
        return ""
    if seen == "memory" and any(call.after for call in case.captured.calls):
        return ""  # the memory that the program used was measured: see `no_use_of_memory`
    own = case.by_source.own_source if case.by_source is not None else ""
    return f"{own} {UNSEEN[seen]}".strip()


def _to_see_the_symptom(arguments: Arguments, case: DiagnosisState) -> list[NextStep]:
    if case.symptom.seen != "wrong-output":
        step = _program_step("diagnose the program in which it fails", case)
        return [] if isinstance(case.workload, ScriptWorkload) else [step]
    if not call_arguments(case) or not isinstance(case.workload, PackageWorkload):
        return [
            NextStep(why="see whether repeated calls agree", tool="run_deterministic", arguments=arguments)
        ]
    expected = {**arguments, "symptom": "wrong-output", "expect": RIGHT_OUTPUTS}
    say = NextStep(why="give the correct outputs", tool="diagnose", arguments=expected)
    return [say, _comparison(arguments)]
