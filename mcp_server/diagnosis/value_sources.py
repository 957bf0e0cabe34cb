"""Where a bad value can come from: elements of inputs, operators of the model, and their source lines."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from mcp_server.diagnosis.components import is_whole, reported
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Category, Component, Evidence, ModelLocation
from mcp_server.package.assertion import Candidate, Division, IndexSource, divisions, read_assertion
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.provenance import DIVIDES, INDEXES, UNBOUNDED, lines_doing
from mcp_server.package.symbols import scalar_values
from mcp_server.package.terms.evaluate import UnknownValue
from mcp_server.package.terms.linear import affine
from mcp_server.package.terms.program import read_program, slice_read
from mcp_server.package.terms.sizes import evaluate
from mcp_server.worker import events
from mcp_server.worker.protocol import InputSlice


@dataclass(frozen=True)
class CheckedInput:
    """A candidate of the trace with the part of an input that it reads directly."""

    candidate: Candidate
    part: InputSlice


def index_error(case: DiagnosisState) -> ErrorFact | None:
    """The index assertion that some run or the given log ended with."""
    return next((error for _, error in case.errors if "index_assert" in error.family.tags), None)


def candidates(case: DiagnosisState) -> tuple[Candidate, ...]:
    """The launches at which the seen assertion may have failed."""
    error = index_error(case)
    if error is None or case.view is None:
        return ()
    fields = error.fields
    # The line of the check: a C++ kernel's stands where the error was raised (torch 2.8-2.15).
    line = fields.get("line") or (fields.get("raised_line") if fields.get("kernel") else None) or ""
    number = int(line) if line.isdigit() else None
    assertion = read_assertion(error.text, fields.get("file"), number, fields.get("kernel"))
    return case.view.tracer.trace(assertion) if assertion is not None else ()


def checked_inputs(case: DiagnosisState) -> list[CheckedInput]:
    """Candidates whose index is an element of an input, as the caller gave it.

    Where others lie between or behind these elements there is none: the origin of the index names them.
    """
    found = []
    for candidate in candidates(case):
        for source in candidate.sources:
            ends = _allowed(candidate, source, case)
            part = _slice_read(candidate, source, ends, case) if source.direct and ends is not None else None
            if part is not None:
                found.append(CheckedInput(candidate, part))
    return found


def wrapped_inputs(case: DiagnosisState) -> list[CheckedInput]:
    """Indices that are elements of an input and wrap where they are negative, in a call of wrong numbers."""
    if case.view is None or case.failure_of("plain") != "differs" or index_error(case) is not None:
        return []
    found = []
    for candidate in case.view.tracer.wrapping():
        bound = bound_value(candidate, case)
        if bound is None or candidate.form is None or not candidate.form.is_plain:
            continue  # what a kernel computes from an element is within the bound or not, whatever that is
        parts = [_slice_read(candidate, s, (0, bound - 1), case) for s in candidate.sources if s.direct]
        found += [CheckedInput(candidate, part) for part in parts if part is not None]
    return found


def whole_slice(candidate: Candidate, case: DiagnosisState) -> InputSlice | None:
    """The elements of the only input behind a check, if the kernel maps them in a way without inverse.

    A label to ignore, say, is replaced before it is used. Elements within the bound always pass; the first
    one outside is the first to suspect.
    """
    source = candidate.sources[0] if len(candidate.sources) == 1 else None
    bound = bound_value(candidate, case)
    if source is None or not source.direct or bound is None or _allowed(candidate, source, case) is not None:
        return None
    low = int(candidate.lowest) if re.fullmatch(r"-?\d+", candidate.lowest) else 0
    part = _slice_read(candidate, source, (low, bound - 1), case)
    return part if part is not None and is_whole(case.compiled_inputs[part.input]) else None


def _allowed(candidate: Candidate, source: IndexSource, case: DiagnosisState) -> tuple[int, int] | None:
    """What an element may be in this call, both ends inclusive; None where the kernel does more than sums."""
    return source.allowed.numbers(_scalars(candidate, case)) if source.allowed is not None else None


def _scalars(candidate: Candidate, case: DiagnosisState) -> dict[str, int]:
    """The sizes that the launch passes in this call, by parameter."""
    return scalar_values(candidate.launch, case.sizes)


def _slice_read(
    candidate: Candidate, source: IndexSource, ends: tuple[int, int], case: DiagnosisState
) -> InputSlice | None:
    """The elements of an input that a check reads, which must lie in `ends`; None where they are no slice."""
    index = _input_index(source, case)
    check = read_program(candidate.kernel).check_at(candidate.check.line)
    tensors = case.given.tensors if case.given is not None else ()
    if check is not None and index is not None and index < len(tensors):
        with contextlib.suppress(UnknownValue):
            read = slice_read(check, source.load.parameter, _scalars(candidate, case))
            if read is None:
                return None
            rest = read.stop - 1 + read.step < prod(tensors[index].shape)
            return InputSlice(index, read.start, read.step, *ends, end=read.stop if rest else None)
    place = affine(source.load.index)
    return InputSlice(index, *place, *ends) if place is not None and index is not None else None


def bound_value(candidate: Candidate, case: DiagnosisState) -> int | None:
    """The bound as a number, with the sizes of this call."""
    if candidate.bound is None or candidate.bound.value is not None:
        return candidate.bound.value if candidate.bound is not None else None
    value = evaluate(candidate.bound.expression, case.sizes)
    return int(value) if value is not None and value.denominator == 1 else None


def _input_index(source: IndexSource, case: DiagnosisState) -> int | None:
    return next((item.index for item in case.compiled_inputs if item.label == source.label), None)


# A logarithm makes minus infinity of a zero; what else makes it alone, fills in a mask.
_LOGARITHM = re.compile(r"\baten\.log(?:2|10|1p|_)?\.")


def first_made(case: DiagnosisState) -> events.NodeNonFinite | None:
    """The first operator to make NaN or plus infinity of finite values, or of a mask's minus infinity.

    A row that is masked as a whole is such a case. If a logarithm made the minus infinity, the logarithm is
    the first. None if an input or a constant had the value already.
    """
    masks: dict[str, events.NodeNonFinite] = {}
    for event in case.eager_events(events.NodeNonFinite):
        if not set(event.bad_inputs) <= masks.keys():
            continue
        if event.masked:
            masks[event.node] = event
            continue
        # The operators that brought the minus infinity from which this one computes.
        names = list(event.bad_inputs)
        for name in names:
            names += [other for other in masks[name].bad_inputs if other not in names]
        roots = [masks[name] for name in names if not masks[name].bad_inputs]
        return next((root for root in roots if _LOGARITHM.search(root.op)), event)
    return None


# Names of index arguments and of the tensors that they index, in ATen's schemas.
_INDICES = frozenset({"indices", "index", "target"})
_INDEXED = ("weight", "self", "out")


@dataclass(frozen=True)
class OperatorIndex:
    """An index argument of a launch; `part` is set where it is an input as the caller gave it."""

    launch: Launch
    argument: Argument
    bound: int
    part: InputSlice | None
    producers: tuple[int, ...]


def refused_index(case: DiagnosisState) -> ErrorFact | None:
    """The text with which an operator of the call refused an index."""
    return next((root for _, root in case.roots if root.family.id == "aten_index"), None)


def operator_indices(case: DiagnosisState) -> list[OperatorIndex]:
    """The index arguments that the refused one can be; empty when no operator refused one."""
    error, view = refused_index(case), case.view
    if error is None or view is None:
        return []
    # The operator calls of the generated code that reported an error.
    names = {each.fields["call"] for _, each in case.errors if each.family.id == "shim_call"}
    inputs = {item.name: item.index for item in case.compiled_inputs}
    found = []
    for launch in view.wrapper.launches:
        bound = _bound(launch, error, case)
        called = launch.kind in ("fallback_shim", "extern") and (not names or launch.callee in names)
        if not called or bound is None:
            continue
        for argument in launch.arguments:
            if argument.name in _INDICES and argument.is_tensor and argument.target:
                writers = view.writers_of_name.get(argument.target, ())
                producers = tuple(number for number in writers if number < launch.index)
                index = inputs.get(argument.target) if not producers else None
                part = InputSlice(index, 0, 1, 0, bound - 1) if index is not None else None
                found.append(OperatorIndex(launch, argument, bound, part, producers))
    return found


def _bound(launch: Launch, error: ErrorFact, case: DiagnosisState) -> int | None:
    """From the text, else the first size of the constant that is indexed."""
    text = error.fields.get("bound", "")
    if text.isdigit():
        return int(text)
    indexed = next((a for name in _INDEXED for a in launch.arguments if a.name == name), None)
    if indexed is None or indexed.kind != "constant" or case.package is None or indexed.view is not None:
        return None
    constant = next((c for c in case.package.constants if c.name == indexed.target), None)
    return constant.shape[0] if constant is not None and constant.shape else None


_BY_ZERO = ("ZeroDivision", "by zero")


def failure(case: DiagnosisState) -> Evidence | None:
    """What shows that a division by zero ended the call: the text of the run, or its signal."""
    plain = case.plain_run
    if plain is not None and plain.finished.signal == "SIGFPE":
        return Evidence(step="run", fact="the process died of SIGFPE: the processor refused a division")
    found = ((source, root) for source, root in case.roots if root.family.id == "kernel_division")
    return next((reported(root, source) for source, root in found), None)


def failed_divisions(case: DiagnosisState) -> tuple[Division, ...]:
    """The divisions of the package, once one failed; those of the line that eager names, if it does."""
    view = case.view
    if view is None or failure(case) is None:
        return ()
    found = divisions(view.tracer)
    event = raised(case)
    lines = {(frame.file, frame.line) for frame in event.stack} if event is not None else set()
    own = [
        division
        for division in found
        if any((at.file, at.line) in lines for at in view.provenance(division.launch).locations)
    ]
    return tuple(own) or found


def raised(case: DiagnosisState) -> events.NodeRaised | None:
    """The operator of the exported program that refuses to divide by zero in eager mode, too."""
    found = case.eager_events(events.NodeRaised)
    return next((each for each in found if any(text in each.text for text in _BY_ZERO)), None)


def divisor_parts(division: Division, case: DiagnosisState) -> list[InputSlice]:
    """The elements of inputs that are divisors as they are."""
    direct = [source for source in division.sources if source.direct and division.plain]
    placed = [(_input_index(source, case), affine(source.load.index) or (0, 1)) for source in direct]
    return [InputSlice(index, *place, 0, 0, unlike=0) for index, place in placed if index is not None]


# Operators that can have done it, as names in source, and as text of a line.
Kind = tuple[re.Pattern[str], re.Pattern[str]]
DIVISIONS: Kind = (re.compile(r"div\w*|floor_divide|remainder|fmod"), DIVIDES)
KINDS: dict[Category, Kind] = {
    "index_out_of_bounds": (
        re.compile(r"index|embedding\w*|gather|scatter\w*|index_\w+|take\w*|put\w*"),
        INDEXES,
    ),
    "nan_or_inf": (
        re.compile(
            r"div\w*|true_divide|pow|float_power|exp\w*|log\w*|r?sqrt|reciprocal|a?tanh?|acosh?|asin|sinh|cosh"
            r"|soft\w+|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inv\w*"
            r"|to|type\w*|half|bfloat16|float16"
        ),
        UNBOUNDED,
    ),
}
MOST = 3  # lines of a kernel, all of which detectors always show


def deepened(party: Component, category: Category, case: DiagnosisState) -> tuple[Component, list[Evidence]]:
    """The party with the line of a called function before its own lines, and the evidence for that.

    Not needed for a program that we ran, whose lines were all recorded (worker/capture/compiles.py), nor for
    a kernel that only computed an index for another one.
    """
    made_index = party.kind == "kernel" and category == "index_out_of_bounds"
    kind = KINDS.get(category) if not made_index else None
    kind = DIVISIONS if failure(case) is not None else kind
    ran = bool(case.captured.compiles)
    line = _only_line(party, kind, case) if kind is not None and not ran else None
    if line is None or line in party.model_locations:
        return party, []
    place = f"{line.file}:{line.line}"
    inferred = Evidence(
        step="read_source",
        fact=f"inferred from the source: of all that the recorded lines call, only {place} can do it; export "
        "records the lines of forward alone",
        source=place,
        command=shlex.join(["sed", "-n", f"{line.line}p", line.file]),
    )
    return party.model_copy(update={"model_locations": [line, *party.model_locations]}), [inferred]


def _only_line(party: Component, kind: Kind, case: DiagnosisState) -> ModelLocation | None:
    """The one line, of all that the recorded lines call, that can be at fault; None if there are several.

    Recorded is the line of the operator that raises or makes the bad value in eager mode. If eager mode names
    none, all lines of the kernel are.
    """
    operator, text = kind
    event = next(iter(case.eager_events(events.NodeRaised)), None) or first_made(case)
    recorded = party.model_locations[:1] if event is not None else party.model_locations
    if len(recorded) > MOST:
        return None  # there may be more that are not shown
    name = event.op.removeprefix("aten.").partition(".")[0] if event is not None else ""
    if name and operator.fullmatch(name):
        operator = re.compile(rf"{re.escape(name)}\w*")
    found: list[ModelLocation] = []
    for at in recorded:
        lines = lines_doing(at, operator)
        if lines is None or any(text.search(code) for code in _in_library(at, case)):
            return None
        found += [line for line in lines if line not in found]
    return found[0] if len(found) == 1 else None


def _in_library(at: ModelLocation, case: DiagnosisState) -> Iterator[str]:
    """What modules of libraries do that are called below that line: the operator may be theirs."""
    provenance = [case.view.provenance(launch) for launch in case.launches] if case.view is not None else []
    for stack in (stack for each in provenance for stack in each.stacks):
        own = [frame for frame in stack if frame.user]
        if own and (own[-1].file, own[-1].line) == (at.file, at.line) and not stack[-1].user:
            yield stack[-1].code
