"""The arguments of a tool or command that looks at a workload, or at its suspect call, again."""

from __future__ import annotations

from typing import Any

from mcp_server.diagnosis.case import Case
from mcp_server.model import (
    CommandWorkload,
    ExportedWorkload,
    PackageWorkload,
    ScriptWorkload,
    TensorSpec,
    Workload,
)

Arguments = dict[str, Any]

DEFAULTS: Arguments = {"model_name": "model", "device_index": -1}


def call_arguments(case: Case) -> Arguments:
    """Package, inputs, model and surroundings of the suspect call; empty when files do not hold it."""
    call = case.call
    if call is None or call.package is None:
        return {}
    inputs = call.inputs if call.inputs is not None else call.request.get("inputs")
    if inputs is None:
        return {}
    found = {
        "package": str(call.package),
        "inputs": _inputs(inputs),
        "model_name": str(call.request.get("model_name", "model")),
        "device_index": int(call.request.get("device_index", -1)),
        "extra_imports": [str(name) for name in call.request.get("extra_imports", ())],
        **_surroundings(case.workload),
    }
    return _given(found)


def workload_arguments(workload: Workload) -> Arguments:
    """The flat tool arguments that name this workload."""
    found: Arguments = {}
    if isinstance(workload, ScriptWorkload):
        found = {"script": str(workload.script), "script_args": workload.args}
    elif isinstance(workload, PackageWorkload):
        found = {
            "package": str(workload.package),
            "model_name": workload.model_name,
            "device_index": workload.device_index,
        }
    elif isinstance(workload, ExportedWorkload):
        found = {"exported": str(workload.exported)}
    elif isinstance(workload, CommandWorkload):
        found = {"command": workload.argv}
    if isinstance(workload, PackageWorkload | ExportedWorkload):
        found |= {"inputs": _inputs(workload.inputs), "extra_imports": workload.extra_imports}
    elif workload.cwd is not None:
        found["cwd"] = str(workload.cwd)
    return _given({**found, **_surroundings(workload)})


def _surroundings(workload: Workload | None) -> Arguments:
    if workload is None:
        return {}
    return {"env": dict(workload.env), "python": str(workload.python) if workload.python else ""}


def _given(arguments: Arguments) -> Arguments:
    """Without what is empty or the default."""
    return {name: value for name, value in arguments.items() if value and value != DEFAULTS.get(name, ...)}


def _inputs(inputs: Any) -> Any:
    if isinstance(inputs, list):
        specs = [spec if isinstance(spec, TensorSpec) else TensorSpec.model_validate(spec) for spec in inputs]
        return [spec.model_dump(exclude_none=True) for spec in specs]
    return str(inputs) if inputs else None
