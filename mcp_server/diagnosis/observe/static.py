"""What is known before the call is made: package, exported program, generated kernels, inputs, machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio.to_thread

from mcp_server.diagnosis.causes.illegal_memory_access import DEFECT_FIXES, explains
from mcp_server.diagnosis.indices import (
    candidates,
    checked_inputs,
    index_error,
    operator_indices,
    parts_of,
    whole_slice,
)
from mcp_server.diagnosis.interventions.kernel import REPAIRS, repair_kernel
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.diagnosis.observe import Observation, place
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.state import CallSpec, DiagnosisState, GeneratedKernel
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.value_sources import divisor_parts, failed_divisions
from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, ModelLocation, PackageWorkload, ScriptWorkload
from mcp_server.package.exported import node_lines, read_exported
from mcp_server.package.mismatch import Mismatch, compare_inputs, compare_structure
from mcp_server.package.problems import PackageError
from mcp_server.package.prover import Finding, find_kernel_defects, narrow_arithmetic
from mcp_server.package.view import view_package
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import read_output
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.compile_with_flags import compile_with_flags
from mcp_server.tools.machine import find_problems, read_machine
from mcp_server.worker import events, protocol
from mcp_server.worker.protocol import InputSlice, ReplayRequest


class OpenPackage(Observation):
    """Open the package file: its device, inputs, constants, launches and defects."""

    name = "open_package"
    seconds = 0.2

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if package_path(case) is not None else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        path, model = package_path(case) or (Path(), None)
        # A program may delete its package, or write another one to the same path.
        loads = reversed(case.captured.loads)
        then = next((load for load in loads if path in (load.copy_path, load.package)), None)
        now = path.stat().st_size if path.exists() else None
        if then is not None and then.bytes and now != then.bytes:
            state = "is gone" if now is None else f"has {now} bytes"
            why = f": {then.notice}" if then.notice else ""
            was = f"{then.package} had {then.bytes} bytes when the program loaded it"
            case.call = None
            case.notes.append(f"{was}, and {state} now; no copy was kept{why}")
            return
        try:
            view = await anyio.to_thread.run_sync(view_package, path, model)
            case.package, case.parsed = view.package, view if view.package.wrapper_text else None
        except PackageError as error:
            case.package_error = error


def package_path(case: DiagnosisState) -> tuple[Path, str | None] | None:
    """The package of the failing call, and the model in it."""
    if case.call is not None:
        return case.call.package, case.call.request.get("model_name")
    if isinstance(case.workload, PackageWorkload):
        return case.workload.package, case.workload.model_name
    return (case.host_package, None) if case.host_package is not None else None


class ReadExported(Observation):
    """Read the program's parameters, fixed arguments and ranges; nothing is loaded."""

    name = "read_exported"
    seconds = 0.1

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if case.program_path is not None else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        path = case.program_path
        assert path is not None
        case.exported = await anyio.to_thread.run_sync(read_exported, path)


class CompileExported(Observation):
    """Compile once, with provenance, so that the call can be made."""

    name = "compile"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if isinstance(case.workload, ExportedWorkload) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        workload = case.workload
        assert isinstance(workload, ExportedWorkload)
        made = await compile_with_flags(context, workload, {"INDUCTOR_PROVENANCE": "1"})
        if made.package is None:
            case.log, case.log_source = read_output(made.log.path), "compile"
            return
        package, inputs = made.package.path, workload.inputs
        if inputs is not None:
            file = inputs if isinstance(inputs, Path) else None
            request: ReplayRequest = {
                "package": str(package),
                "inputs": str(file) if file else cast("list[protocol.TensorSpec]", inputs),
                "extra_imports": workload.extra_imports,
            }
            case.call = CallSpec("run", request, package, file)


# Inductor names generated files by the base32 of their SHA-256 (torch/_inductor/codecache.py, 2.8-2.15).
_GENERATED = re.compile(r"c[a-z2-7]{50,51}\.py")
_KERNEL = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)
LARGEST = 4 << 20
MOST_LINES = 3
# Operators of a model that index with values, as they stand in the names of fused kernels.
_INDEXING = frozenset({"index", "embedding", "gather", "index_select", "index_put", "scatter", "take"})


class ReadGeneratedKernel(Observation):
    """Read the kernel that an error names, only after a run of our own: a log may name any path.

    Only files that the compiler wrote, or in which the program stands, are read.
    """

    name = "read_generated_kernel"
    seconds = 0.1

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.package is not None or not case.runs:
            return 0.0
        return 1.0 if _named(case) is not None or _refused(case) is not None else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        named, refused = _named(case), _refused(case)
        case.generated = _read(*named, case) if named is not None else None
        if case.generated is None and refused is not None:
            case.generated = _of_user(*refused, case)


def _named(case: DiagnosisState) -> tuple[Path, int] | None:
    """The generated file and the line in it that the index assertion names."""
    error = index_error(case)
    fields = error.fields if error is not None else {}
    path, line = Path(fields.get("file", "")), fields.get("line", "")
    return (path, int(line)) if _GENERATED.fullmatch(path.name) and line.isdigit() else None


def _refused(case: DiagnosisState) -> tuple[str, int] | None:
    """The user's Triton kernel that could not be compiled, and the line in it, counted from its `def`."""
    for _, root in case.own_roots:
        if root.family.id == "triton_compile" and "function" in root.fields:
            line = root.fields.get("kernel_line", "")
            return (root.fields["function"], int(line)) if line.isdigit() else None
    return None


def _read(path: Path, line: int, case: DiagnosisState) -> GeneratedKernel | None:
    """None for a file that is gone, too large, or no Triton kernel."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return None
    text = path.read_text(errors="replace")
    kernel, lines = _KERNEL.search(text), text.splitlines()
    if kernel is None or "@triton.jit" not in text or line > len(lines):
        return None
    # The lines of the operators that index, of those that are fused in the kernel.
    words = {word for word in _INDEXING if f"_{word}_" in f"_{kernel[1]}_"}
    model = (at for target, at in _nodes(case) if words.intersection(target.split(".")[1:2]))
    code = lines[line - 1].strip()[:300]
    return GeneratedKernel(kernel[1], path, line, code, tuple(dict.fromkeys(model))[:MOST_LINES])


def _of_user(function: str, line: int, case: DiagnosisState) -> GeneratedKernel | None:
    """Where the program defines that kernel; None if no file of it does, or several do.

    Its files are the script, and those with lines of its model.
    """
    pattern = re.compile(rf"^def\s+{re.escape(function)}\s*\(", re.MULTILINE)
    script = [case.workload.script] if isinstance(case.workload, ScriptWorkload) else []
    stacks = [Path(at.file) for compiled in case.captured.compiles for at in compiled.stack]
    nodes = [Path(at.file) for _, at in _nodes(case)]
    found = []
    for path in dict.fromkeys([*script, *stacks, *nodes]):
        if path.is_file() and path.stat().st_size <= LARGEST:
            found += [(path, at) for at in pattern.finditer(path.read_text(errors="replace"))]
    if len(found) != 1:
        return None
    path, at = found[0]
    number = at.string.count("\n", 0, at.start()) + line
    lines = at.string.splitlines()
    code = lines[number - 1].strip()[:300] if number <= len(lines) else ""
    return GeneratedKernel(function, path, number, code)


def _nodes(case: DiagnosisState) -> tuple[tuple[str, ModelLocation], ...]:
    """Operators of the program whose compile failed, with their lines; none where it was not kept."""
    for compiled in reversed(case.captured.compiles):
        if compiled.exported is not None and compiled.exported.is_file():
            try:
                return node_lines(compiled.exported)
            except PackageError:
                return ()
    return ()


RAISED_LOWER = 2


class CompareInputs(Observation):
    """Describe the inputs, and compare them with what the package was compiled for."""

    name = "compare_inputs"
    seconds = 3.0

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if case.package is not None and case.inputs else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.package is not None and case.call is not None
        request = {"inputs": case.inputs}
        done = await context.worker("describe_inputs", request, name="describe-inputs", **case.surroundings)
        described = done.last(events.Inputs)
        if described is None:
            return
        signature = case.package.signature
        case.leaves = described.leaves
        case.sharing = described.sharing
        case.given = from_leaves(case.leaves, signature)
        place(case)
        # The device of the load, as it is made again: the first where neither user nor program said.
        loaded_on = max(case.device_index, 0) if case.device == "cuda" else None
        found = [
            *compare_inputs(signature, case.given.tensors, device_index=loaded_on),
            *compare_structure(signature, case.given.paths),
        ]
        case.mismatches = tuple(_with_user_range(mismatch, case) for mismatch in found)


def _with_user_range(mismatch: Mismatch, case: DiagnosisState) -> Mismatch:
    """A compiled range may be tighter than the user's, which the exported program knows."""
    index, dim = mismatch.input_index, mismatch.dim
    if mismatch.aspect != "range" or index is None or dim is None:
        return mismatch
    if case.exported is None or case.package is None or not mismatch.got.lstrip("-").isdigit():
        return mismatch
    item = case.package.inputs[index]
    definition = case.package.signature.definition(item.name, dim)
    symbol = item.dims[dim].expression
    if definition and definition.solution is None:
        symbol = definition.symbol
    bounds = case.exported.ranges.get(symbol or "")
    if bounds is None:
        return mismatch
    (low, high), size = bounds, int(mismatch.got)
    if low == RAISED_LOWER and size < low and mismatch.severity != "fatal":
        return mismatch  # export raises the bounds of Dim.DYNAMIC and Dim.AUTO to 2 by itself
    note = f"{mismatch.sentence}; the exported program allows {low}..{high}"
    if (low is None or size >= low) and (high is None or size <= high):
        note = f"{note}, so that this is a false alarm"
        return mismatch.model_copy(update={"severity": "suspicious", "sentence": note})
    return mismatch.model_copy(update={"severity": "fatal", "sentence": note})


def parts_to_see(case: DiagnosisState) -> list[InputSlice]:
    """Elements of inputs that a failed assertion of a kernel, or the check of an operator, saw."""
    found = parts_of([*checked_inputs(case), *operator_indices(case)])
    found += [part for candidate in candidates(case) if (part := whole_slice(candidate, case)) is not None]
    found += [part for division in failed_divisions(case) for part in divisor_parts(division, case)]
    return list(dict.fromkeys(found))


class LookAtIndices(Observation):
    """Compare the elements of inputs that the kernel indexes with, or divides by, with what they may be."""

    name = "look_at_indices"
    seconds = 3.0

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if case.call is not None and case.given is not None and parts_to_see(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        request = {"inputs": case.inputs, "parts": parts_to_see(case)}
        done = await context.worker("index_values", request, name="index-values", **case.surroundings)
        for event in done.all(events.IndexValues):
            case.index_values[event.part] = event


MOST_MENDED = 3
MACHINE_CATEGORIES = frozenset(
    {"arch_mismatch", "toolchain", "environment", "device_mismatch", "invalid_package"}
)


class CheckMachine(Observation):
    """Compile a probe, ask the interpreter, and compare the package with what is found."""

    name = "check_machine"
    seconds = 6.0

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.package is None or not case.failed:
            return 0.0
        run = case.own_run
        silent = run is not None and run.failure == "signal" and run.root is None
        asked = any(h.category in MACHINE_CATEGORIES for h in open_suspects)
        return 0.7 if silent or asked else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.package is not None
        workload = case.workload
        python = context.python_for(workload) if workload else context.python
        machine = await read_machine(context, workload.env if workload else {}, python)
        case.problems = tuple(find_problems(case.package, machine, case.device_index))


class ReadKernels(Observation):
    """Work out from the code and the sizes of the call what kernels do wrong."""

    name = "read_kernels"
    seconds = 1.0

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        sized = case.given is not None or not case.compiled_inputs
        if case.view is None or not sized or not case.launches:
            return 0.0
        return 0.6 if any(explains(kind, case) for kind in DEFECT_FIXES) else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        assert case.view is not None
        found = await anyio.to_thread.run_sync(find_kernel_defects, case.view, case.sizes)
        if explains("narrow", case):
            found += await anyio.to_thread.run_sync(narrow_arithmetic, case.view)
        case.kernel_defects = dict.fromkeys(found)


class MendKernels(Observation):
    """Compile the kernels without the defects that were read in them.

    Where only the exported program says that the call is wrong, it is made with them at once: that needs what
    eager mode returns.
    """

    name = "mend_kernels"
    seconds = 4.0
    extra = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.request.get("library") or not _to_mend(case):
            return 0.0
        return 0.7 if not _only_by_eager(case) or "compare_with_eager" in case.done else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.kernel_defects is not None
        for found in _to_mend(case):
            call = tried_call(case)
            try:
                change = case.kernel_defects[found] = await repair_kernel(context, call, found)
            except ProblemError as problem:
                case.notes.append(f"{found.sentence} It was not repaired: {problem}")
                continue
            right = case.with_eager.every_launch.eager_outputs if case.with_eager is not None else None
            if right is not None and _only_by_eager(case):
                call = replace(call, symptom=replace(call.symptom, expect=right.path))
                case.trials[change.key] = await try_intervention(context, call, change)


def _to_mend(case: DiagnosisState) -> list[Finding]:
    """The defects that explain the failure and that a change of their kernel removes."""
    defects = case.kernel_defects or {}
    return [each for each in defects if each.kind in REPAIRS and explains(each.kind, case)][:MOST_MENDED]


def _only_by_eager(case: DiagnosisState) -> bool:
    """Whether only the exported program says that the call is wrong."""
    return case.equals_eager is False and not case.call_fails and not case.symptom.judges
