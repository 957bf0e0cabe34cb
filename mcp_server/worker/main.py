"""Entry of the worker: `PYTHON -u main.py REQUEST.json REPORT.jsonl`.

The request is an object with `operation` and its arguments. The report gets one JSON object per line, each
written before the phase that it names begins, so that a crash still shows how far the work came. Exit status:
0 done, 1 the workload raised (its traceback is on stderr), 2 the request cannot be served (event `refused`).
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .protocol import Request
    from .report import Report

PACKAGE = "_aoti_debug_worker"


class Operation(NamedTuple):
    """An operation of the worker. `function` is `module.name`; it is called with (request, report).

    `runs` and `compiles`: how the cost counts it. `loads`: it loads a package, and compiles nothing.
    `leases`: it may use a GPU. `forks`: it can run in a fork of a process that has imported torch. `probe`
    cannot, because it describes a fresh interpreter, nor can `compile`, whose compiler processes depend on
    how they were started. `left_at_once`: it ends with `os._exit`, because its results are in files by then
    and a normal exit takes 0.3 s of processor time, or 0.5 s in a fork, which copies each page that it
    touches.
    """

    function: str
    runs: bool = False
    compiles: bool = False
    loads: bool = False
    leases: bool = False
    forks: bool = False
    left_at_once: bool = False


RUNNING = {"runs": True, "loads": True, "leases": True, "forks": True}
READING = {"forks": True, "left_at_once": True}

OPERATIONS = {
    "probe": Operation("machine.operate"),
    "judge_captures": Operation("decompiled.operate_judge_captures", **READING),
    "describe_inputs": Operation("inputs.operate_describe_inputs", **READING),
    "run": Operation("run.operate", **RUNNING),
    "compile": Operation("loading.operate_compile", compiles=True),
    "compare_launches": Operation("compare_launches.operate", leases=True, left_at_once=True),
    "interpret": Operation("interpret.operate", leases=True, **READING),
    "replay": Operation("run.operate", **RUNNING),
    "repeat": Operation("compare_launches.operate_repeat", loads=True, leases=True, forks=True),
    "intervene": Operation("intervene.operate", left_at_once=True, **RUNNING),
    "recompile_triton": Operation("loading.operate_recompile_triton"),
    "index_values": Operation("inputs.operate_index_values", **READING),
    "observe": Operation("observe.operate", left_at_once=True, **RUNNING),
    "rebuild": Operation("encode.operate_rebuild", **READING),
    "attempt": Operation("reduction.attempt.operate_attempt", compiles=True, leases=True, forks=True),
    "record": Operation("reduction.attempt.operate_record", leases=True, **READING),
    "cut": Operation("reduction.attempt.operate_cut", **READING),
    "trial": Operation("reduction.attempt.operate_trial", compiles=True, leases=True, **READING),
    "schemas": Operation("decompiled.operate_schemas", **READING),
    "time_build": Operation("timing.operate_build", compiles=True),
    "compile_changed": Operation("timing.operate_changed", compiles=True),
    "try_sizes": Operation("capture.attempts.operate_sizes", compiles=True),
    "time_call": Operation("timing.operate", runs=True, loads=True, leases=True),
    "time_load": Operation("timing.operate_load", loads=True, leases=True),
    "verify": Operation("decompiled.operate_verify", **RUNNING),
}

HERE = os.path.dirname(os.path.abspath(__file__))


def drop_script_dir() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]


def register_as_package() -> None:
    """Make this directory a package under a private name, unless it is one. The hook calls this, too."""
    if PACKAGE in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def run_operation(request: Request, report: Report) -> int:
    """Run the requested operation and return the exit status."""
    failures, events = (importlib.import_module(PACKAGE + name) for name in (".report", ".events"))
    try:
        if request.get("temporary"):  # deleted with the job, and so are the files that a crash leaves there
            os.environ["TMPDIR"] = request["temporary"]
            tempfile.tempdir = None
        report.phase("importing_torch", request["operation"])
        import torch

        report.event(events.Torch(torch.__version__, torch.version.cuda))
        if request.get("extra_imports"):
            importlib.import_module(PACKAGE + ".imports").import_all(request["extra_imports"], report)
        module, _, function = OPERATIONS[request["operation"]].function.rpartition(".")
        operate = getattr(importlib.import_module("{}.{}".format(PACKAGE, module)), function)
        operate(request, report)
    except failures.Refused as refused:
        report.event(events.Refused(refused.what, refused.value, refused.allowed))
        return 2
    except BaseException as error:
        report.event(events.Failed(during=report.last, **failures.facts(error)))
        traceback.print_exc()  # the report has only type and text
        return 1
    report.phase("finished")
    return 0


def main(argv: list[str]) -> int:
    register_as_package()
    reports = importlib.import_module(PACKAGE + ".report")
    if reports.rank() not in ("", "0"):  # of several ranks, only rank 0 works
        return 0
    drop_script_dir()
    sys.path.append(os.getcwd())  # last, so that it shadows no module
    after = os.environ.get("AOTI_DEBUG_STACKS_AFTER")
    if after:  # print every thread's stack shortly before the time limit
        faulthandler.dump_traceback_later(float(after), exit=False)
    with open(argv[1], encoding="utf-8") as file:
        request: Request = json.load(file)
    status = run_operation(request, reports.Report(argv[2]))
    if OPERATIONS[request["operation"]].left_at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # flush what native code printed
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
