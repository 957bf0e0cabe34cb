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
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protocol import Request
    from .report import Report

PACKAGE = "_aoti_debug_worker"

# operation -> the module here and its function, which gets (request, report)
OPERATIONS = {
    "probe": "machine.operate",
    "describe_inputs": "inputs.operate_describe_inputs",
    "run": "run.operate_run",
    "compile": "compiling.operate_compile",
    "compare_launches": "compare_launches.operate",
    "precision": "eager_launches.operate_precision",
    "interpret": "interpret.operate",
    "replay": "run.operate_replay",
    "repeat": "compare_launches.operate_repeat",
    "intervene": "intervene.operate",
    "price": "compare_launches.operate_price",
    "eager_calls": "eager_calls.operate",
    "recompile_triton": "compiling.operate_recompile_triton",
    "index_values": "inputs.operate_index_values",
    "observe": "observe.operate",
    "describe_files": "inputs.operate_describe_files",
    "attempt": "reduction.reduce.operate_attempt",
    "record": "reduction.reduce.operate_record",
    "reduce": "reduction.reduce.operate_reduce",
    "bisect": "reduction.bisect.operate",
}

# All that these find is in their report and files, and nobody asks how the process ends. Taking the
# interpreter down costs as much as they do: 0.3 s of processor time after the import of torch, 0.5 s in a
# fork, where each page that is touched is copied first.
LEFT_AT_ONCE = frozenset(
    {"describe_inputs", "index_values", "interpret", "describe_files", "intervene", "observe"}
    | {"compare_launches", "eager_calls", "price", "precision"}
)

HERE = os.path.dirname(os.path.abspath(__file__))


def drop_script_dir() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]


def register_as_package() -> None:
    """Make this directory a package under a private name, if it is none yet; also for the hook."""
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
    """Do the asked operation; the exit status."""
    failures, events = (importlib.import_module(PACKAGE + name) for name in (".report", ".events"))
    try:
        report.phase("importing_torch", request["operation"])
        import torch

        report.event(events.Torch(torch.__version__, torch.version.cuda))
        if request.get("extra_imports"):
            importlib.import_module(PACKAGE + ".imports").import_all(request["extra_imports"], report)
        module, _, function = OPERATIONS[request["operation"]].rpartition(".")
        operate = getattr(importlib.import_module("{}.{}".format(PACKAGE, module)), function)
        operate(request, report)
    except failures.Refused as refused:
        report.event(events.Refused(refused.what, refused.value, refused.allowed))
        return 2
    except BaseException as error:
        report.event(events.Failed(during=report.last, **failures.facts(error)))
        traceback.print_exc()  # for a reader of logs
        return 1
    report.phase("finished")
    return 0


def main(argv: list[str]) -> int:
    register_as_package()
    reports = importlib.import_module(PACKAGE + ".report")
    if reports.rank() not in ("", "0"):  # rank 0 does the work
        return 0
    drop_script_dir()
    sys.path.append(os.getcwd())  # last, where it shadows no module
    after = os.environ.get("AOTI_DEBUG_STACKS_AFTER")
    if after:  # every thread's stack shortly before the time limit: what a call that hangs is doing
        faulthandler.dump_traceback_later(float(after), exit=False)
    with open(argv[1], encoding="utf-8") as file:
        request: Request = json.load(file)
    status = run_operation(request, reports.Report(argv[2]))
    if request["operation"] in LEFT_AT_ONCE:
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what native code printed
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
