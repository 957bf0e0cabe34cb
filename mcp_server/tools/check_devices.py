"""`check_devices`: compares machine, package and inputs before anything runs."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.logs.captured import Captured, CapturedCall
from mcp_server.model import Fix, PackageWorkload, Record, Workload
from mcp_server.package.archive import Package, open_package
from mcp_server.package.mismatch import (
    GivenTensor,
    Mismatch,
    calling_order,
    compare_inputs,
    compare_structure,
    tuple_text,
)
from mcp_server.package.problems import PackageError
from mcp_server.package.signature import UNKNOWN, Signature
from mcp_server.package.view import view_package
from mcp_server.runtime.context import Context
from mcp_server.tools.machine import Machine, Problem, compiler_problems, find_problems, read_machine
from mcp_server.worker.events import Inputs
from mcp_server.worker.report import TensorFacts

_ARGUMENT = re.compile(r"\[(?P<which>0|1)\](?P<rest>\[.*)")


@dataclass(frozen=True)
class Given:
    """Flat tensors in calling order, the paths of all leaves, and notes on leaves that are not tensors."""

    tensors: tuple[GivenTensor, ...]
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def from_leaves(leaves: Sequence[TensorFacts], signature: Signature | None) -> Given:
    """Put leaves from the worker's `describe_inputs` into the order in which the package takes them."""
    # The key path `[0][1]['x']` in (args, kwargs) becomes `args[1]['x']`; a captured flat list stays `[1]`.
    paths = [leaf.path or "" for leaf in leaves]
    nested = [_ARGUMENT.fullmatch(path) for path in paths]
    paths = [
        f"{('args', 'kwargs')[int(match['which'])]}{match['rest']}" if match else path
        for path, match in zip(paths, nested, strict=True)
    ]
    order = calling_order(signature, paths) if signature is not None else range(len(leaves))
    tensors, notes = [], []
    for index in order:
        leaf = leaves[index]
        if leaf.kind == "tensor" and leaf.shape is not None:
            tensors.append(_given(leaf.dtype or "", leaf.shape, leaf.stride, leaf.device or "cpu"))
        else:
            notes.append(
                f"{paths[index]} is not a plain tensor ({leaf.layout or leaf.kind}); a "
                "package ignores it and uses the exported value"
            )
    return Given(tuple(tensors), tuple(paths), tuple(notes))


def misfits_of(seen: Captured) -> list[CapturedCall]:
    """The kept calls whose inputs their package cannot read as they are."""
    found = []
    for call in seen.calls:
        load = seen.load_of(call) if call.file else None
        if load is None:
            continue
        given = [_given(e.dtype or "", e.shape or (), e.stride, e.device or "cpu") for e in call.leaves]
        name = str(load.options.get("model_name", "model"))
        with suppress(PackageError):  # an unreadable package is a cause of its own
            view = view_package(load.copy_path or load.package, name)
            unlike = compare_inputs(view.package.signature, given)
            if unlike and unlike[0].severity == "fatal":
                found.append(call)
    return found


def _given(dtype: str, shape: Sequence[int], stride: Sequence[int] | None, device: str) -> GivenTensor:
    """Describe the tensor of a leaf, or of a spec."""
    strides = tuple(stride) if stride is not None else None
    return GivenTensor(dtype.removeprefix("torch."), tuple(shape), strides, device)


class PackageFacts(Record):
    """What a machine must have for the package. `custom_ops` run through the proxy executor."""

    model: str
    models: list[str]
    device: str | None
    platform: str | None
    machine: str | None
    isa: list[str]
    compute_capability: str | None
    cxx_runtime: str | None
    weights: str
    custom_ops: list[str]


class InputRow(Record):
    """An input as compiled and, in `given`, as passed.

    `range` has the range of each dynamic dimension; `path` is the place in the caller's arguments.
    """

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
    """The result. `problems` and `mismatches` begin with certain ones; `unknown` is what was not checked.

    `undecided` says why it is unknown whether the passed inputs fit.
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
    env = workload.env if workload is not None else {}
    python = context.python_for(workload) if workload is not None else context.python
    package, broken = await _open(workload)
    passed: Given | None = None
    why = ""

    async def read_inputs() -> None:
        nonlocal passed, why
        if isinstance(workload, PackageWorkload) and package is not None:
            passed, why = await _read_inputs(context, workload, package)

    async with anyio.create_task_group() as tasks:  # each task needs a process that imports torch
        tasks.start_soon(read_inputs)
        machine = await read_machine(context, env, python)
    problems = broken or compiler_problems(machine)
    mismatches: list[Mismatch] = []
    undecided = ""
    if isinstance(workload, PackageWorkload) and package is not None:
        problems = find_problems(package, machine, workload.device_index) + problems
        mismatches = _mismatches(package, passed, workload)
        if workload.inputs is not None:
            undecided = why or ("" if package.signature.known else UNKNOWN)
    return DevicesChecked(
        summary=_summary(problems, mismatches, package, passed, undecided),
        machine=machine,
        package=_facts(package) if package is not None else None,
        inputs=_rows(package, passed) if package is not None else [],
        mismatches=mismatches,
        problems=problems,
        # Facts that are not faults: fixed arguments, ignored leaves.
        notes=[*(package.signature.notes if package else ()), *(passed.notes if passed else ())],
        unknown=[*machine.unknown, *_not_checked(workload, package, why)],
        undecided=f"inputs: {undecided}" if undecided else "",
    )


async def _open(workload: Workload | None) -> tuple[Package | None, list[Problem]]:
    """The package, or why it cannot be read. Neither for a workload of another kind."""
    if not isinstance(workload, PackageWorkload):
        return None, []
    try:
        return await anyio.to_thread.run_sync(open_package, workload.package, workload.model_name), []
    except PackageError as error:
        fix = Fix(text=error.next_call) if error.next_call else None
        what = error.what if error.value is None else f"{error.what}: {error.value}"
        return None, [Problem(category="invalid_package", what=what, certain=True, fix=fix)]


def _mismatches(package: Package, passed: Given | None, workload: PackageWorkload) -> list[Mismatch]:
    if passed is None:
        return []
    loaded_on = workload.device_index if workload.device_index >= 0 else None
    return [
        *compare_structure(package.signature, passed.paths),
        *compare_inputs(package.signature, passed.tensors, device_index=loaded_on),
    ]


def _not_checked(workload: Workload | None, package: Package | None, why: str) -> list[str]:
    if not isinstance(workload, PackageWorkload):
        return ["no package and no inputs were given"]
    if package is None:
        return ["the inputs were not checked: the package cannot be read"]
    return [f"inputs: {why}"] if why else []


async def _read_inputs(
    context: Context, workload: PackageWorkload, package: Package
) -> tuple[Given | None, str]:
    """The inputs, or why they are not known. Specs need no process."""
    if workload.inputs is None:
        return None, "none were given"
    if not isinstance(workload.inputs, Path):
        # Specs are flat tensors in the order of the exported call.
        return Given(tuple(_given(s.dtype, s.shape, s.stride, s.device) for s in workload.inputs)), ""
    request = {"inputs": str(workload.inputs)}
    try:
        run = await context.worker(
            "describe_inputs", request, env=workload.env, python=workload.python, cwd=workload.cwd
        )
    except ProblemError as error:
        return None, f"{error.what}: {error.value}"
    event = run.last(Inputs)
    if event is None:
        return None, f"the worker could not describe the inputs: {run.finished.note or run.phase!r}"
    return from_leaves(event.leaves, package.signature), ""


def _summary(
    problems: list[Problem],
    mismatches: Sequence[Mismatch],
    package: Package | None,
    passed: Given | None,
    undecided: str,
) -> str:
    """Summarise in one sentence: the first certain difference, what is undecided, or what fits."""
    certain = [problem.what for problem in problems if problem.certain]
    certain += [mismatch.sentence for mismatch in mismatches if mismatch.severity == "fatal"]
    if certain:
        more = f" (and {len(certain) - 1} more)" if len(certain) > 1 else ""
        return f"{certain[0]}{more}"
    if undecided:
        return f"not known whether the inputs fit: {undecided}"
    looked_at = "machine, package and inputs" if passed is not None else "machine and package"
    looked_at = looked_at if package is not None else "machine"
    doubts = len(problems) + len(mismatches)
    return f"{looked_at}: nothing that must fail" + (f", {doubts} doubtful points" if doubts else "")


def _facts(package: Package) -> PackageFacts:
    library, metadata = package.library, package.metadata
    return PackageFacts(
        model=package.model_name,
        models=list(package.models),
        device=package.device_type,
        platform=metadata.platform,
        machine=metadata.machine or (library.machine if library else None),
        isa=list(metadata.isa),
        compute_capability=package.compute_capability,
        cxx_runtime=library.cxx_runtime if library else None,
        weights=package.weights.place,
        custom_ops=list(dict.fromkeys(package.proxy_nodes)),
    )


def _rows(package: Package, passed: Given | None) -> list[InputRow]:
    """Build a row for each compiled input, and for surplus tensors that were passed."""
    texts = []
    for tensor in passed.tensors if passed is not None else ():
        stride = f" strides {tensor.strides}" if tensor.stride is not None else ""
        texts.append(f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}{stride}")
    rows = [
        InputRow(
            index=item.index,
            name=item.name,
            path=item.path,
            device=item.device_type,
            dtype=item.dtype,
            shape=item.shape,
            range=", ".join(
                f"{dim}: {dim.lower or 0}..{dim.upper or 'any'}" for dim in item.dims if dim.size is None
            ),
            strides=tuple_text(item.strides),
            given=texts[item.index] if item.index < len(texts) else None,
        )
        for item in package.inputs
    ]
    beyond = "(not compiled)" if package.signature.known else "(not known)"
    extra = enumerate(texts[len(rows) :], len(rows))
    return rows + [InputRow(index=index, name=beyond, given=text) for index, text in extra]
