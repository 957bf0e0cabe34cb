"""Facts known before the call is made, from package, exported program, inputs and machine."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import anyio.to_thread

from mcp_server.diagnosis.call_seen import CallSpec, Writer
from mcp_server.diagnosis.causes.value_constraints import divisor_parts, extreme_parts, failed_divisions
from mcp_server.diagnosis.components import written_inputs
from mcp_server.diagnosis.indices import (
    candidates,
    checked_inputs,
    further_inputs,
    operator_indices,
    parts_of,
    whole_slice,
)
from mcp_server.diagnosis.observe import EXPLAINS, NEEDED, Observation, place
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import ExportedWorkload, Fix, PackageWorkload
from mcp_server.package.exported import read_exported
from mcp_server.package.mismatch import (
    BRANCH,
    WIDER,
    Mismatch,
    compare_inputs,
    compare_structure,
    without_doubt,
)
from mcp_server.package.problems import PackageError
from mcp_server.package.view import view_package
from mcp_server.plurals import quoted
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import read_output
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.compile_with_flags import compile_with_flags
from mcp_server.tools.machine import find_problems, read_machine
from mcp_server.worker import events, protocol
from mcp_server.worker.protocol import InputSlice, ReplayRequest


class OpenPackage(Observation, seconds=0.2, best=NEEDED):
    """Open the package file: its device, inputs, constants, launches and defects."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if package_path(case) is not None else 0.0

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
            case.writers = await anyio.to_thread.run_sync(_writers, case)
        except PackageError as error:
            case.package_error = error


def _writers(case: DiagnosisState) -> list[Writer]:
    """The earlier calls of other packages that wrote inputs of the suspect call."""
    call, found = case.suspect_call, []
    calls = {each.number: each for each in case.calls if call is not None and each.pid == call.pid}
    for given, number, at in call.shared if call is not None else ():
        earlier = calls[number]
        load = case.captured.load_of(earlier)
        with contextlib.suppress(PackageError):
            if load is not None and at in written_inputs(view_package(load.copy_path or load.package, None)):
                found.append(Writer(given, earlier, at, load.package.name))
    return found


def package_path(case: DiagnosisState) -> tuple[Path, str | None] | None:
    """The package of the failing call, and the name of the model in it."""
    if case.call is not None:
        return case.call.package, case.call.request.get("model_name")
    if isinstance(case.workload, PackageWorkload):
        return case.workload.package, case.workload.model_name
    return (case.host_package, None) if case.host_package is not None else None


class ReadExported(Observation, seconds=0.1, best=NEEDED):
    """Read the program's parameters, fixed arguments and ranges without loading it."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.program_path is not None else 0.0

    def after_proof(self, case: DiagnosisState) -> bool:
        """Whether the graph says why the package lacks a name that an update gave."""
        return self.name not in case.done and any(each.outcome == "failed" for each in case.updates)

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        path = case.program_path
        assert path is not None
        case.exported = await anyio.to_thread.run_sync(read_exported, path)


class CompileExported(Observation, name="compile", seconds=30, best=NEEDED, alone=True):
    """Compile once, with provenance, so that the call can be made."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if isinstance(case.workload, ExportedWorkload) else 0.0

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


RAISED_LOWER = 2


class CompareInputs(Observation, seconds=3, best=NEEDED):
    """Describe the inputs, and compare them with what the package was compiled for."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.package is not None and case.inputs else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.package is not None and case.call is not None
        request = {"inputs": case.inputs}
        done = await context.worker("describe_inputs", request, name="describe-inputs", **case.surroundings)
        described = done.last(events.Inputs)
        if described is None:
            return
        sizes = case.exported.sizes if case.exported is not None else ()
        signature = case.package.signature.with_sizes(sizes)
        case.leaves = described.leaves
        case.given = from_leaves(case.leaves, signature)
        place(case)
        # The device of the repeated load. The first one if neither user nor program chose one.
        loaded_on = max(case.device_index, 0) if case.device == "cuda" else None
        found = [
            *compare_inputs(signature, case.given.tensors, device_index=loaded_on),
            *compare_structure(signature, case.given.paths),
        ]
        case.mismatches = tuple(_with_wider(_with_user_range(mismatch, case), case) for mismatch in found)


def _with_user_range(mismatch: Mismatch, case: DiagnosisState) -> Mismatch:
    """Judge the size by the user's range in the exported program, since the compiled range may be tighter."""
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
        return mismatch  # export itself raises the lower bounds of Dim.DYNAMIC and Dim.AUTO to 2
    sentence = without_doubt(mismatch.sentence)  # the program confirms the bound
    note = f"{sentence}; the exported program allows {low}..{high}"
    if (low is None or size >= low) and (high is None or size <= high):
        note = f"{note}, so this size is no fault"
        return mismatch.model_copy(update={"severity": "suspicious", "sentence": note})
    return mismatch.model_copy(update={"severity": "fatal", "sentence": note})


_GUARD = re.compile(r"satisfy the generated guard (?P<guard>.+)")


def _with_wider(mismatch: Mismatch, case: DiagnosisState) -> Mismatch:
    """The mismatch. If an export with a wider range passed, that edit is its fix."""
    exports = [each for tried in case.captured.attempts if tried.stage == "range" for each in tried.attempts]
    place, narrowing = (mismatch.input_index, mismatch.dim), case.captured.narrowing
    if narrowing is not None:
        line = narrowing.stack[0]
        sets = f". Line {line.line} of the model sets this bound: {line.code}"
        fix = Fix(text=mismatch.fix.text.replace(BRANCH, sets))
        return mismatch.model_copy(update={"fix": fix})
    found = [each for each in exports if place in each.widened and each.name == _bound(mismatch)]
    if not found:
        return mismatch
    tried, wider = found[0], WIDER.format(got=mismatch.got)
    text = mismatch.fix.text.replace(BRANCH, "")
    if tried.outcome == "passes":
        passes = f"{wider.partition(',')[0]}: this export passes and returns the outputs of eager mode"
        fix = Fix(text=text.replace(wider, passes), before=tried.before, after=tried.after)
        return mismatch.model_copy(update={"fix": fix})
    guard = _GUARD.search(tried.error)
    words = quoted(guard["guard"] if guard else tried.error.partition("\n")[0])
    refused = f"The model itself sets this bound: with {tried.after}, {tried.note} stops ({words})"
    return mismatch.model_copy(update={"fix": Fix(text=f"{text.replace(f'; {wider}', '')}. {refused}")})


def _bound(mismatch: Mismatch) -> str:
    """The bound that the size violates, `min` or `max`. Empty for other mismatches."""
    low, dots, _ = mismatch.expected.partition("..")
    return ("min" if int(mismatch.got) < int(low) else "max") if dots else ""


def parts_to_see(case: DiagnosisState) -> list[InputSlice]:
    """Input elements that may be bad: indices, divisors, and values that are extreme."""
    found = parts_of([*checked_inputs(case), *further_inputs(case), *operator_indices(case)])
    found += [part for candidate in candidates(case) if (part := whole_slice(candidate, case)) is not None]
    found += [part for division in failed_divisions(case) for part in divisor_parts(division, case)]
    found += extreme_parts(case)
    return list(dict.fromkeys(found))


class LookAtIndices(Observation, seconds=3, best=NEEDED):
    """Compare input elements that are used as indices or divisors with their allowed values."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.call is not None and case.given is not None and parts_to_see(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        request = {"inputs": case.inputs, "parts": parts_to_see(case)}
        done = await context.worker("index_values", request, name="index-values", **case.surroundings)
        for event in done.all(events.IndexValues):
            case.index_values[event.part] = event


MACHINE_CATEGORIES = frozenset(
    {"arch_mismatch", "toolchain", "environment", "device_mismatch", "invalid_package"}
)


class CheckMachine(Observation, seconds=6, best=EXPLAINS):
    """Compile a probe, query the interpreter, and compare the package with the results."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.package is None or not case.failed:
            return 0.0
        run = case.own_run
        silent = run is not None and run.failure == "signal" and run.root is None
        asked = any(h.category in MACHINE_CATEGORIES for h in open_suspects)
        return self.best if silent or asked else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.package is not None
        workload = case.workload
        python = context.python_for(workload) if workload else context.python
        machine = await read_machine(context, workload.env if workload else {}, python)
        case.problems = tuple(find_problems(case.package, machine, case.device_index))
