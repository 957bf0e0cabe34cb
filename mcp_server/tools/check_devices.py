"""`check_devices`: machine, package and inputs against each other, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Fix, PackageWorkload, Record, TensorSpec, Workload
from mcp_server.package.archive import Package, open_package
from mcp_server.package.inputs import UNKNOWN
from mcp_server.package.match import compare_inputs, tuple_text
from mcp_server.package.mismatch import GivenTensor, Mismatch, calling_order, compare_structure
from mcp_server.package.problems import PackageError
from mcp_server.package.signature import CompiledInput, Signature
from mcp_server.tools.context import Context
from mcp_server.tools.machine import Machine, Problem, compiler_problems, find_problems, read_machine

_ARGUMENT = re.compile(r"\[(0|1)\](\[.*)")


@dataclass(frozen=True)
class Given:
    """Flat tensors in calling order, the paths of all leaves, and what is worth saying about the others."""

    tensors: tuple[GivenTensor, ...]
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def from_specs(specs: Sequence[TensorSpec]) -> Given:
    """Specs are flat tensors in the order of the exported call."""
    return Given(tuple(_from_spec(spec) for spec in specs))


def _from_spec(spec: TensorSpec) -> GivenTensor:
    stride = tuple(spec.stride) if spec.stride is not None else None
    return GivenTensor(spec.dtype.removeprefix("torch."), tuple(spec.shape), stride, spec.device)


def from_leaves(leaves: Sequence[Mapping[str, Any]], signature: Signature | None) -> Given:
    """Leaves of the worker's `describe_inputs`, brought into the order in which the package takes them."""
    paths = [_argument_path(str(leaf.get("path", ""))) for leaf in leaves]
    order = calling_order(signature, paths) if signature is not None else range(len(leaves))
    tensors, notes = [], []
    for index in order:
        leaf = leaves[index]
        if leaf.get("kind") == "tensor" and leaf.get("shape") is not None:
            tensors.append(_from_leaf(leaf, paths[index]))
        else:
            notes.append(
                f"{paths[index]} is no plain tensor ({leaf.get('layout') or leaf.get('kind')}); a package "
                "drops it and computes with what was exported"
            )
    return Given(tuple(tensors), tuple(paths), tuple(notes))


def _from_leaf(leaf: Mapping[str, Any], path: str) -> GivenTensor:
    stride = leaf.get("stride")
    return GivenTensor(
        dtype=str(leaf["dtype"]),
        shape=tuple(leaf["shape"]),
        stride=tuple(stride) if stride is not None else None,
        device=str(leaf.get("device", "cpu")),
        path=path,
    )


def _argument_path(path: str) -> str:
    """`[0][1]['x']`, a key path in (args, kwargs), as `args[1]['x']`; a captured flat list stays `[1]`."""
    match = _ARGUMENT.fullmatch(path)
    return f"{('args', 'kwargs')[int(match[1])]}{match[2]}" if match else path


LARGEST_FILES = 8


class PackageFacts(Record):
    """What the file says of itself. Sizes in bytes; `custom_ops` run through the proxy executor."""

    path: str
    bytes: int
    model: str
    models: list[str]
    device: str | None
    platform: str | None
    machine: str | None
    isa: list[str]
    compute_capability: str | None
    cxx_runtime: str | None
    needed_libraries: list[str]
    weights: str
    weights_bytes: int
    constants: int | None
    kernel_binaries: int
    custom_ops: list[str]
    outputs: int | None
    model_lines: bool
    files: dict[str, int]


class InputRow(Record):
    """An input as compiled and as given; `range` per dynamic dimension, `path` as the caller reaches it."""

    index: int
    name: str
    path: str | None = None
    device: str | None = None
    dtype: str | None = None
    shape: str = ""
    range: str = ""
    strides: str = ""
    given: str | None = None


class DevicesChecked(Record):
    """`problems` and `mismatches` have the certain ones first; `unknown` says what could not be looked at.

    `undecided` is what was asked, by giving inputs, and has no answer: it could not be looked at, either.
    """

    summary: str
    machine: Machine
    package: PackageFacts | None = None
    inputs: list[InputRow] = Field(default_factory=list)
    mismatches: list[Mismatch] = Field(default_factory=list)
    problems: list[Problem] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    unknown: list[str] = Field(default_factory=list)
    undecided: str = ""


async def check_devices(context: Context, workload: Workload | None = None) -> DevicesChecked:
    """Compare machine, package and inputs. Nothing is run; the worker only looks at devices and files.

    A package that cannot be read is a problem of category `invalid_package` in the result.
    """
    if not isinstance(workload, PackageWorkload):
        machine = await _machine(context, workload)
        return _finish(machine, compiler_problems(machine), unknown=["package and inputs: none were given"])
    try:
        package = await anyio.to_thread.run_sync(open_package, workload.package, workload.model_name)
    except PackageError as error:
        machine = await _machine(context, workload)
        return _finish(machine, [_unreadable(error)], unknown=["inputs: the package cannot be read"])
    return await _check_package(context, workload, package)


async def _machine(context: Context, workload: Workload | None) -> Machine:
    env = workload.env if workload is not None else {}
    python = context.python_for(workload) if workload is not None else context.python
    return await read_machine(context, env, python)


async def _check_package(context: Context, workload: PackageWorkload, package: Package) -> DevicesChecked:
    """Machine and inputs are asked side by side: each costs an import of torch."""
    machines: list[Machine] = []
    answers: list[tuple[Given | None, list[str]]] = []

    async def ask_machine() -> None:
        machines.append(await _machine(context, workload))

    async def ask_inputs() -> None:
        answers.append(await _given(context, workload, package))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_machine)
        tasks.start_soon(ask_inputs)
    (machine,), ((given, unknown),) = machines, answers
    undecided = unknown[0] if workload.inputs is not None and unknown else ""
    if given is not None and not package.signature.known:
        undecided = f"inputs: {UNKNOWN}"
    mismatches = mismatches_of(package, given, workload.device_index) if given is not None else []
    problems = [*find_problems(package, machine, workload.device_index), *compiler_problems(machine)]
    return _finish(
        machine,
        problems,
        package=package,
        given=given,
        mismatches=mismatches,
        unknown=unknown,
        undecided=undecided,
    )


def mismatches_of(package: Package, given: Given, device_index: int = -1) -> list[Mismatch]:
    """Every difference of a call's inputs from the package: structure, then each tensor."""
    loaded_on = device_index if device_index >= 0 else None
    return [
        *compare_structure(package.signature, given.paths),
        *compare_inputs(package.signature, given.tensors, device_index=loaded_on),
    ]


async def _given(
    context: Context, workload: PackageWorkload, package: Package
) -> tuple[Given | None, list[str]]:
    """The inputs, and why they cannot be told. Specs need no process at all."""
    if workload.inputs is None:
        return None, ["inputs: none were given"]
    if not isinstance(workload.inputs, Path):
        return from_specs(workload.inputs), []
    try:
        return await describe_inputs(context, workload, package), []
    except ProblemError as error:
        return None, [f"inputs: {error}"]


async def describe_inputs(context: Context, workload: PackageWorkload, package: Package) -> Given:
    """Ask the worker what an inputs file holds. Raises `ProblemError` when it is no file of tensors."""
    run = await context.worker(
        "describe_inputs",
        {"inputs": _request(workload.inputs)},
        env=workload.env,
        python=context.python_for(workload),
        cwd=workload.cwd,
    )
    event = run.last("inputs")
    if event is None:
        raise ProblemError("the worker could not describe the inputs", value=run.finished.note or run.phase)
    return from_leaves(event["leaves"], package.signature)


def _request(inputs: Path | list[TensorSpec] | None) -> object:
    return str(inputs) if isinstance(inputs, Path) else inputs


def _unreadable(error: PackageError) -> Problem:
    return Problem(
        category="invalid_package",
        what=f"{error.slug}: {error}",
        certain=True,
        fix=Fix(action=error.next_call) if error.next_call else None,
    )


def _finish(
    machine: Machine,
    problems: list[Problem],
    *,
    package: Package | None = None,
    given: Given | None = None,
    mismatches: list[Mismatch] | None = None,
    unknown: list[str],
    undecided: str = "",
) -> DevicesChecked:
    found = mismatches or []
    return DevicesChecked(
        summary=_summary(problems, found, package, given, undecided),
        machine=machine,
        package=_facts(package) if package is not None else None,
        inputs=_rows(package, given) if package is not None else [],
        mismatches=found,
        problems=problems,
        notes=_notes(package, given),
        unknown=[*machine.unknown, *unknown],
        undecided=undecided,
    )


def _notes(package: Package | None, given: Given | None) -> list[str]:
    """What is no fault and yet worth knowing: fixed arguments, dropped leaves."""
    return [*(package.signature.notes if package else ()), *(given.notes if given else ())]


def _summary(
    problems: list[Problem],
    mismatches: list[Mismatch],
    package: Package | None,
    given: Given | None,
    undecided: str,
) -> str:
    """One sentence: the first certain difference, what could not be decided, or what was found to fit."""
    certain = [p.what for p in problems if p.certain] + [
        m.sentence for m in mismatches if m.severity == "fatal"
    ]
    if certain:
        more = f" (and {len(certain) - 1} more)" if len(certain) > 1 else ""
        return f"{certain[0]}{more}"
    if undecided:
        return f"not known whether the inputs fit: {undecided.removeprefix('inputs: ')}"
    doubts = len(problems) + len(mismatches)
    looked_at = (
        "machine"
        if package is None
        else "machine and package"
        if given is None
        else "machine, package and inputs"
    )
    return f"{looked_at}: nothing that must fail" + (f", {doubts} doubtful points" if doubts else "")


def _facts(package: Package) -> PackageFacts:
    library, metadata = package.library, package.metadata
    largest = sorted(package.files.members, key=lambda member: -member.size)[:LARGEST_FILES]
    return PackageFacts(
        path=str(package.path),
        bytes=sum(member.size for member in package.members),
        model=package.model_name,
        models=list(package.models),
        device=package.device_type,
        platform=metadata.platform,
        machine=metadata.machine or (library.machine if library else None),
        isa=list(metadata.isa),
        compute_capability=package.compute_capability,
        cxx_runtime=library.cxx_runtime if library else None,
        needed_libraries=list(library.needed) if library else [],
        weights=package.weights.place,
        weights_bytes=package.weights.bytes,
        constants=len(package.constants) if package.signature.known else None,
        kernel_binaries=len(package.files.kernel_binaries),
        custom_ops=list(dict.fromkeys(node.target for node in package.proxy_nodes)),
        outputs=package.signature.output_count,
        model_lines=bool(package.kernel_information),
        files={Path(member.name).name: member.size for member in largest},
    )


def _rows(package: Package, given: Given | None) -> list[InputRow]:
    """A row for each compiled input, and for given tensors beyond them."""
    tensors = given.tensors if given is not None else ()
    rows = [_row(item, tensors[item.index] if item.index < len(tensors) else None) for item in package.inputs]
    extra = tensors[len(rows) :]
    beyond = "(not compiled)" if package.signature.known else "(not known)"
    return rows + [
        InputRow(index=len(rows) + i, name=beyond, given=_text(tensor)) for i, tensor in enumerate(extra)
    ]


def _row(item: CompiledInput, tensor: GivenTensor | None) -> InputRow:
    ranges = [f"{dim}: {dim.lower or 0}..{dim.upper or 'any'}" for dim in item.dims if dim.size is None]
    return InputRow(
        index=item.index,
        name=item.name,
        path=item.path,
        device=item.device_type,
        dtype=item.dtype,
        shape=item.shape,
        range=", ".join(ranges),
        strides=tuple_text(item.strides),
        given=_text(tensor) if tensor is not None else None,
    )


def _text(tensor: GivenTensor) -> str:
    stride = f" strides {tensor.strides}" if tensor.stride is not None else ""
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}{stride}"
