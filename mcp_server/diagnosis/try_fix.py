"""`try_fix`: a failing call without, with and again without a change, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp_server.diagnosis.interventions import call as environment
from mcp_server.diagnosis.interventions import input
from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Intervention, Options
from mcp_server.diagnosis.interventions.kernel import Edit, edit_kernel, replace_launch
from mcp_server.diagnosis.interventions.plan import TriedCall, call_of_package
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.diagnosis.interventions.spelling import FORMS, read_change
from mcp_server.diagnosis.tried_fix import TriedFix, tried_fix
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.signature import CompiledInput
from mcp_server.tools.context import Context


@dataclass(frozen=True)
class Asked:
    """What to change, as the caller spelled it, and what the outputs are to be."""

    changes: tuple[str, ...] = ()
    kernel: str = ""
    replace: tuple[str, ...] = ()
    launch: int | None = None
    how: str = "guard"
    constants: Path | None = None
    set_env: Mapping[str, str] = field(default_factory=dict)
    expect: Path | None = None
    tolerance: float | None = None


async def try_fix(context: Context, workload: PackageWorkload, asked: Asked) -> TriedFix:
    """Make the call before, with the change, and again.

    Raises `ProblemError`: no inputs, nothing to change, a change that cannot be made, an expectation that
    does not fit.
    """
    package = open_package(workload.package, workload.model_name)
    call = replace(
        call_of_package(workload, expect=asked.expect),
        rtol=asked.tolerance,
        atol=asked.tolerance,
        spelling=_spelling(workload, asked),
    )
    intervention = await _intervention(context, call, asked, package.inputs)
    if intervention.unavailable:
        raise ProblemError(intervention.unavailable, value=" ".join(intervention.spelling))
    intervention = replace(intervention, smallest=bool(intervention.changes))
    trial = await try_intervention(context, call, intervention)
    if trial.after.ended == "refused":
        raise ProblemError(f"the change cannot be made: {trial.after.text}", allowed=FORMS)
    return tried_fix(trial, package.inputs)


async def _intervention(
    context: Context, call: TriedCall, asked: Asked, known: tuple[CompiledInput, ...]
) -> Intervention:
    """All that was asked for as one intervention."""
    parts = [_input_change(text, known) for text in asked.changes]
    if bool(asked.kernel) != bool(asked.replace) or len(asked.replace) == 1:
        raise ProblemError(
            "a kernel is edited by its name and a replacement",
            value=asked.kernel or list(asked.replace),
            allowed="--kernel NAME --replace OLD NEW",
        )
    if asked.kernel and asked.launch is not None:
        raise ProblemError("one kernel is changed at a time", allowed="either --kernel or --launch")
    if asked.kernel:
        parts.append(await edit_kernel(context, call, Edit(asked.kernel, *asked.replace)))
    if asked.launch is not None:
        parts.append(await replace_launch(context, call, asked.launch, asked.how))
    if asked.constants is not None:
        parts.append(input.given_values(asked.constants))
    if asked.set_env:
        parts.append(environment.with_variables(asked.set_env))
    if not parts:
        raise ProblemError(
            "nothing to change",
            allowed="--change, --kernel with --replace, --launch with --as, --constants, --set-env",
        )
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Intervention]) -> Intervention:
    """Several changes as one: whether they do it together."""
    unavailable = next((part.unavailable for part in parts if part.unavailable), "")
    options = Options(
        package=next((part.options.package for part in parts if part.options.package), None),
        updates=next((part.options.updates for part in parts if part.options.updates), None),
        env={name: value for part in parts for name, value in part.options.env.items()},
    )
    return Intervention(
        key=" + ".join(part.key for part in parts),
        kind=parts[0].kind,
        what="; ".join(part.what for part in parts),
        changes=tuple(change for part in parts for change in part.changes),
        options=options,
        before_code="\n".join(part.before_code for part in parts),
        after_code="\n".join(part.after_code for part in parts),
        spelling=tuple(word for part in parts for word in part.spelling),
        unavailable=unavailable,
    )


def _input_change(text: str, known: tuple[CompiledInput, ...]) -> Intervention:
    change = read_change(text, lambda name: item_of(name, known).index)
    item = next((item for item in known if item.index == change.input), None)
    name = (item.path if item is not None else None) or f"inputs[{change.input}]"
    return inputs.changed(inputs.Leaf(change.input or 0, name), change)


def item_of(name: str, known: tuple[CompiledInput, ...]) -> CompiledInput:
    """The input of that number, path (`args[1]`) or name. Raises `ProblemError`."""
    for item in known:
        if name in (str(item.index), item.path, item.name, f"inputs[{item.index}]"):
            return item
    raise ProblemError(
        "no such input", value=name, allowed=", ".join(item.path or str(item.index) for item in known[:40])
    )


def _spelling(workload: PackageWorkload, asked: Asked) -> tuple[str, ...]:
    """The arguments of the command that name the call and the expectation."""
    given = workload.inputs
    text = (
        json.dumps([spec.model_dump(exclude_none=True) for spec in given]) if isinstance(given, list) else ""
    )
    words = [str(workload.package), "--inputs", text or str(given)]
    if workload.model_name != "model":
        words += ["--model-name", workload.model_name]
    if workload.device_index != -1:
        words += ["--device-index", str(workload.device_index)]
    for module in workload.extra_imports:
        words += ["--extra-imports", module]
    for name, value in workload.env.items():
        words += ["--env", f"{name}={value}"]
    words += ["--expect", str(asked.expect)] if asked.expect else []
    return (*words, *(["--tolerance", str(asked.tolerance)] if asked.tolerance else []))
