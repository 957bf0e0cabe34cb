"""Shell lines that show a piece of evidence again."""

from __future__ import annotations

import shlex

from mcp_server.diagnosis.case import Case
from mcp_server.steps.context import WORKER_MAIN, WorkerRun

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


def command_for(step: str, case: Case) -> str:
    """The command of a step; empty when there is none."""
    if step in ON_THE_CALL:
        return _on_the_call(*ON_THE_CALL[step], case=case)
    if step in ("inspect_package", "open_package"):
        return _line("inspect-package", *_package(case)) if _package(case) else ""
    if step == "read_log":
        return _line("explain-error", "--log", _log(case)) if _log(case) else ""
    if step == "capture" and case.capture is not None:
        return f"cat {shlex.quote(str(case.capture.directory))}/capture-*.jsonl"
    return again({"interpret": case.interpreted, "watch_operators": case.operators}.get(step))


def _line(*words: str) -> str:
    return shlex.join(["aoti-debug", *words])


def _on_the_call(command: str, *options: str, case: Case) -> str:
    inputs = case.call.inputs if case.call is not None else None
    if not _package(case) or inputs is None:
        return ""
    return _line(command, *options, *_package(case), "--inputs", str(inputs))


def _package(case: Case) -> tuple[str, ...]:
    return (str(case.call.package),) if case.call is not None and case.call.package is not None else ()


def _log(case: Case) -> str:
    if case.log is not None:
        return case.log_source
    return str(case.plain.finished.output) if case.plain is not None else ""


def again(run: WorkerRun | None) -> str:
    """The same request given to the worker again, with its report on the terminal."""
    if run is None:
        return ""
    request = run.directory / "request.json"
    return shlex.join([str(run.python), "-u", str(WORKER_MAIN), str(request), "/dev/stdout"])
