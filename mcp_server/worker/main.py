"""Entry of the worker: `PYTHON -u main.py REQUEST.json REPORT.jsonl`.

The request is an object with `operation` and its arguments. The report gets one JSON object per line, each
written before the phase that it names begins, so that a crash still tells how far the work came. Exit status:
0 done, 1 the workload raised (its traceback is on stderr), 2 the request cannot be served (event `refused`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

PACKAGE = "_aoti_debug_worker"

# operation -> the file here that has its `operate(request, report)`
OPERATIONS = {
    "probe": "probe",
    "describe_inputs": "describe_inputs",
    "run": "run",
    "compile": "compile",
    "beside": "beside",
    "interpret": "interpret",
    "replay": "replay",
    "repeat": "repeat",
    "intervene": "intervene",
    "recompile_triton": "recompile_triton",
    "index_values": "index_values",
    "observe": "observe",
    "describe_files": "describe_files",
    "attempt": "reduction.attempt",
    "record": "reduction.record",
    "reduce": "reduction.operate",
}

# These load nothing whose end could fail, and taking the interpreter down costs as much as they do: 0.3 s of
# processor time after the import of torch, 0.5 s in a fork, where each page that is touched is copied first.
LEFT_AT_ONCE = frozenset({"describe_inputs", "index_values", "interpret", "describe_files"})

HERE = os.path.dirname(os.path.abspath(__file__))


def hide() -> None:
    """Take this directory off `sys.path`."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]


def adopt() -> None:
    """Make this directory a package under a private name."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def print_stacks_late() -> None:
    """Every thread's stack shortly before the time limit: what a call that hangs is doing."""
    after = os.environ.get("AOTI_DEBUG_STACKS_AFTER")
    if after:
        import faulthandler

        faulthandler.dump_traceback_later(float(after), exit=False)


def perform(request: dict[str, Any], report: Any) -> int:
    """Do the asked operation; the exit status."""
    failures = importlib.import_module(PACKAGE + ".failures")
    try:
        report.event("importing_torch", operation=request["operation"])
        import torch

        report.event("torch", version=torch.__version__, cuda=torch.version.cuda)
        module = importlib.import_module("{}.{}".format(PACKAGE, OPERATIONS[request["operation"]]))
        module.operate(request, report)
    except failures.Refused as refused:
        report.event("refused", what=refused.what, value=refused.value, allowed=refused.allowed)
        return 2
    except BaseException as error:
        failures.tell(error, report)
        return 1
    report.event("finished")
    return 0


def main(argv: list[str]) -> int:
    adopt()
    if importlib.import_module(PACKAGE + ".ranks").other_rank():
        return 0
    hide()
    sys.path.append(os.getcwd())  # last, where it shadows no module
    print_stacks_late()
    with open(argv[1], encoding="utf-8") as file:
        request = json.load(file)
    report = importlib.import_module(PACKAGE + ".report").Report(argv[2])
    status = perform(request, report)
    if request["operation"] in LEFT_AT_ONCE:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
