"""Shell lines that show a piece of evidence again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_server.diagnosis.actions.exported_program import exported_path
from mcp_server.diagnosis.call_arguments import call_arguments
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.reductions import TAKEN
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.steps.context import WORKER_MAIN, WorkerRun
from mcp_server.steps.reduce.variant import Variant

# Steps whose evidence one of our own commands shows again, on the package and inputs of the call. The package
# comes last: some commands take it as their target, others as an option.
ON_THE_CALL = {
    "check_devices": ("check-devices", "--package"),
    "run": ("run-deterministic", "--repeats", "1", "--no-check-inputs"),
    "run_with_input_checks": ("run-deterministic", "--repeats", "1"),
    "look_at_indices": ("dump-kernel-io", "--stop-at-first-bad", "--package"),
    "dump_kernel_io": ("dump-kernel-io", "--stop-at-first-bad", "--package"),
    "trace_launches": ("trace-launches",),
    "locate_fault": ("locate-fault",),
}

# Runs by their label: what a healthy one shows is shown again by the step that made it.
RUNS = {
    "plain": "run",
    "checked": "run_with_input_checks",
    "command": "script",
    "alone": "script",
    "run_alone": "script",
}


def command_for(step: str, case: Case) -> str:
    """The command of a step; empty when there is none."""
    step = RUNS.get(step, step)
    if step in ON_THE_CALL:
        return _on_the_call(*ON_THE_CALL[step], case=case)
    if step == "script":
        return _program(case)
    if step == "compare_with_eager":
        return _comparison(case)
    if step in ("inspect_package", "open_package"):
        return _line("inspect-package", *_package(case)) if _package(case) else ""
    if step in ("try_padding", "try_wider"):
        return _launch_alone(case.padding if step == "try_padding" else case.widened, case)
    if step == "read_log":
        return _line("explain-error", "--log", _log(case)) if _log(case) else ""
    if step == "read_generated_kernel" and case.generated is not None:
        return shlex.join(["sed", "-n", f"{case.generated.line}p", str(case.generated.file)])
    if step == "capture" and case.capture is not None:
        return f"cat {shlex.quote(str(case.capture.directory))}/capture-*.jsonl"
    runs = {
        "interpret": case.interpreted,
        "watch_operators": case.operators,
        "repeat_call": case.repeated_watched or case.repeated,
    }
    return again(runs.get(step), case)


def _line(*words: str) -> str:
    return shlex.join(["aoti-debug", *words])


def _on_the_call(command: str, *options: str, case: Case) -> str:
    given = call_arguments(case)
    return _line(command, *options, given.pop("package"), *_options(given)) if given else ""


def call_words(case: Case) -> tuple[str, ...]:
    """The words by which a command names the call: package, inputs and surroundings.

    Empty for a call that needs what no file holds, such as updates of constants before it.
    """
    given = call_arguments(case)
    steps = case.call.request.get("steps", ()) if case.call is not None else ()
    if not given or any(step["do"] == "constants" for step in steps):
        return ()
    return (given.pop("package"), *_options(given))


def _launch_alone(variants: Mapping[str, Variant], case: Case) -> str:
    """The launch as it was, as a script beside the kernel's source, which can be changed there."""
    launches = [tried.launch for tried in variants.values() if tried.changed is not None]
    if not launches:
        return ""
    given = call_arguments(case)
    taken = {name: value for name, value in given.items() if name in TAKEN}
    return (
        _line("reduce", "--scope", "launch", "--launch", str(launches[0]), *_options(taken)) if taken else ""
    )


def _comparison(case: Case) -> str:
    """Of package and program; of the whole script where it updated constants before the call."""
    given, program = call_arguments(case), exported_path(case)
    if case.call is None or program is None or not given:
        return ""
    if any(step["do"] == "constants" for step in case.call.request.get("steps", ())):
        return _line("compare-with-eager", "--script", str(getattr(case.workload, "script", "")))
    taken = {name: given[name] for name in ("inputs", "extra_imports", "python") if name in given}
    return _line(
        "compare-with-eager", "--package", given["package"], "--exported", str(program), *_options(taken)
    )


def _options(given: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as options: a list is named once for each item, specs are JSON."""
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name == "inputs" and isinstance(value, list):
            yield from (option, json.dumps(value))
        elif isinstance(value, Mapping):
            yield from (word for key, item in value.items() for word in (option, f"{key}={item}"))
        elif isinstance(value, list):
            yield from (word for item in value for word in (option, item))
        else:
            yield from (option, str(value))


def _package(case: Case) -> tuple[str, ...]:
    if case.call is None or case.call.package is None:
        return ()
    model = str(case.call.request.get("model_name", "model"))
    return (str(case.call.package), *(("--model-name", model) if model != "model" else ()))


def _program(case: Case) -> str:
    """The user's own program, in its directory, as it was run, without the hook."""
    workload = case.workload
    if not isinstance(workload, ScriptWorkload | CommandWorkload):
        return ""
    if isinstance(workload, ScriptWorkload):
        argv = [str(workload.python or "python"), str(workload.script), *workload.args]
    else:
        argv = workload.argv
    line = _in_environment(workload.env, argv)
    return f"cd {shlex.quote(str(workload.cwd))} && {line}" if workload.cwd is not None else line


def _in_environment(env: Mapping[str, str], argv: Sequence[str]) -> str:
    """A command with variables before it."""
    variables = [f"{name}={value}" for name, value in env.items()]
    return shlex.join(["env", *variables, *argv] if variables else argv)


def _log(case: Case) -> str:
    if case.log is not None:
        return case.log_source
    return str(case.plain.finished.output) if case.plain is not None else ""


def again(run: WorkerRun | None, case: Case) -> str:
    """The same request given to the worker again, with its report on the terminal."""
    if run is None:
        return ""
    argv = [str(run.python), "-u", str(WORKER_MAIN), str(run.directory / "request.json"), "/dev/stdout"]
    return _in_environment(case.workload.env if case.workload else {}, argv)
