"""Finds which index of a call is outside which limit, and the input elements that it comes from.

An index is known from a check in generated code, from an operator that rejected it, or from a watched launch.
Symbolic limits are evaluated for the sizes of this call.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from mcp_server.diagnosis.components import is_whole
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.logs.facts import ErrorFact
from mcp_server.package.assertion import Candidate, IndexSource, assertion_of
from mcp_server.package.launches import Launch
from mcp_server.package.symbols import scalar_values
from mcp_server.package.terms.accesses import slice_read
from mcp_server.package.terms.evaluate import UnknownValue
from mcp_server.package.terms.linear import affine
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.sizes import evaluate_whole
from mcp_server.tools.dump_kernel_io import operator_bounds
from mcp_server.worker.protocol import InputSlice


@dataclass(frozen=True)
class Index:
    """An index that a launch uses, and its allowed range in this call, both ends included.

    `part` are the input elements from which the index is read directly. `candidate` is the check in generated
    code; `indexed` are labels of the indexed tensors. An operator takes its index from the tensor `variable`,
    last written by the launch `maker`. `holds` is the value of the index that was seen. An element minus
    `shift` is the position that it selects; None if that is not known. `offsets`: it says where a bag starts.
    """

    launch: Launch
    low: int
    high: int
    part: InputSlice | None = None
    candidate: Candidate | None = None
    indexed: tuple[str, ...] = ()
    variable: str = ""
    maker: Launch | None = None
    holds: str = ""
    shift: int | None = 0
    offsets: bool = False


def parts_of(indices: Iterable[Index]) -> list[InputSlice]:
    """The input elements of those indices that are read directly from an input."""
    return [each.part for each in indices if each.part is not None]


def index_error(case: DiagnosisState) -> ErrorFact | None:
    """The index assertion that ended a run or the given log."""
    return next((error for _, error in case.errors if "index_assert" in error.family.tags), None)


def candidates(case: DiagnosisState) -> tuple[Candidate, ...]:
    """The launches at which the seen assertion may have failed."""
    error = index_error(case)
    if error is None or case.view is None:
        return ()
    assertion = assertion_of(error)
    return case.view.tracer.trace(assertion) if assertion is not None else ()


def checked_inputs(case: DiagnosisState) -> list[Index]:
    """The indices of the failed check that are read directly from an input.

    Empty if a launch computes the index: the origin then names the input elements.
    """
    return _direct(candidates(case), case)


def further_inputs(case: DiagnosisState) -> list[Index]:
    """The indices of other checks, which the call may not have reached: it stopped at a bad index."""
    failed = checked_inputs(case)
    if not failed or case.view is None:
        return []
    parts = {each.part for each in failed}
    return [each for each in _direct(case.view.tracer.every(), case) if each.part not in parts][:MOST_FURTHER]


MOST_FURTHER = 16


def _direct(checks: Iterable[Candidate], case: DiagnosisState) -> list[Index]:
    found = []
    for candidate in checks:
        for source in candidate.sources:
            allowed = _allowed(candidate, source, case) if source.direct else None
            part = _slice_read(candidate, source, allowed, case) if allowed is not None else None
            if part is not None:
                ends, shift = (part.low, part.high), _shift(candidate, source, part.high, case)
                found.append(Index(candidate.launch, *ends, part, candidate, candidate.indexed, shift=shift))
    return found


def _shift(candidate: Candidate, source: IndexSource, high: int, case: DiagnosisState) -> int | None:
    """The largest allowed element minus the last position. None if the kernel multiplies elements."""
    bound = bound_value(candidate, case)
    plain = source.allowed is not None and source.allowed.factor == 1
    return high - (bound - 1) if bound is not None and plain else None


def whole_slice(candidate: Candidate, case: DiagnosisState) -> InputSlice | None:
    """Elements of the only input of a check, if the kernel changes them in a way that has no inverse.

    For example, it replaces labels to be ignored. Elements within the bound always pass, so the first one
    outside is the first suspect.
    """
    source = candidate.sources[0] if len(candidate.sources) == 1 else None
    bound = bound_value(candidate, case)
    if source is None or not source.direct or bound is None or _allowed(candidate, source, case) is not None:
        return None
    low = int(candidate.lowest) if re.fullmatch(r"-?\d+", candidate.lowest) else 0
    part = _slice_read(candidate, source, (low, bound - 1), case)
    return part if part is not None and is_whole(case.compiled_inputs[part.input]) else None


def _allowed(candidate: Candidate, source: IndexSource, case: DiagnosisState) -> tuple[int, int] | None:
    """The allowed range of an element in this call, ends included. None if unknown."""
    sizes = scalar_values(candidate.launch, case.sizes)
    return source.allowed.numbers(sizes) if source.allowed is not None else None


def _slice_read(
    candidate: Candidate, source: IndexSource, ends: tuple[int, int], case: DiagnosisState
) -> InputSlice | None:
    """The input elements that a check reads, which must lie in `ends`. None if they do not form a slice."""
    index = input_index(source, case)
    check = read_program(candidate.kernel).check_at(candidate.check.line)
    tensors = case.given.tensors if case.given is not None else ()
    if check is not None and index is not None and index < len(tensors):
        with contextlib.suppress(UnknownValue):
            sizes = scalar_values(candidate.launch, case.sizes)
            read = slice_read(check, source.load.parameter, sizes)
            if read is None:
                return None
            rest = read.stop - 1 + read.step < prod(tensors[index].shape)
            return InputSlice(index, read.start, read.step, *ends, end=read.stop if rest else None)
    place = affine(source.load.index)
    return InputSlice(index, *place, *ends) if place is not None and index is not None else None


def bound_value(candidate: Candidate, case: DiagnosisState) -> int | None:
    """The bound as a number, computed with the sizes of this call."""
    bound = candidate.bound
    if bound is None or bound.value is not None:
        return bound.value if bound is not None else None
    return evaluate_whole(bound.expression, case.sizes)


def input_index(source: IndexSource, case: DiagnosisState) -> int | None:
    """The number of the input that a load reads. None if it reads another tensor."""
    return next((item.index for item in case.compiled_inputs if item.label == source.label), None)


# Argument names in ATen's schemas: indices, and the tensors that they index. Errors about offsets say so, and
# offsets may also equal the length.
_INDICES = frozenset({"indices", "index", "target"})
_INDEXED = ("weight", "self", "out")
_OFFSETS = "offsets"


OF_ATEN = ("aten_index", "aten_assert")


def refused_index(case: DiagnosisState) -> ErrorFact | None:
    """The text with which an operator of the call, or a kernel of ATen on the device, rejected an index."""
    return next((root for _, root in case.roots if root.family.id in OF_ATEN), None)


def operator_indices(case: DiagnosisState) -> list[Index]:
    """The index arguments that may be the rejected one. Empty if no operator rejected any."""
    error, view = refused_index(case), case.view
    if error is None or view is None:
        return []
    # Calls in generated code that reported the error. Any later call may report an error of the device, so
    # such an error names no call.
    shims = (each for _, each in case.errors if each.family.id == "shim_call" and not error.family.late)
    names = {each.fields["call"] for each in shims}
    inputs = {item.name: item.index for item in case.compiled_inputs}
    found = []
    for launch in view.wrapper.launches:
        bound = _bound(launch, error, case)
        called = launch.kind in ("fallback_shim", "extern") and (not names or launch.callee in names)
        if not called or bound is None:
            continue
        offsets = error.fields.get("index") == _OFFSETS
        indices, of = ({_OFFSETS}, ("indices",)) if offsets else (_INDICES, _INDEXED)
        indexed = tuple(view.label(a.target) for a in launch.tensors if a.name in of)[:1]
        for name in (a.target for a in launch.tensors if a.name in indices and a.target):
            maker = _maker(name, launch, case)
            given = inputs.get(name) if maker is None else None
            first = 1 if bound == 1 and offsets else None  # only the first offset must be 0
            part = InputSlice(given, 0, 1, 0, bound - 1, end=first) if given is not None else None
            holds = error.fields.get("value", "")
            index = Index(launch, 0, bound - 1, part, None, indexed, name, maker, holds, offsets=offsets)
            found.append(index)
    return found


def _bound(launch: Launch, error: ErrorFact, case: DiagnosisState) -> int | None:
    """The bound in the error's text, otherwise the first size of the indexed constant. None if unknown."""
    text = error.fields.get("bound", "")
    if text.isdigit():
        return int(text) + (error.fields.get("index") == _OFFSETS)
    indexed = next((a for name in _INDEXED for a in launch.arguments if a.name == name), None)
    if indexed is None or indexed.kind != "constant" or case.package is None or indexed.view is not None:
        return None
    constant = next((c for c in case.package.constants if c.name == indexed.target), None)
    return constant.shape[0] if constant is not None and constant.shape else None


def _maker(name: str, launch: Launch, case: DiagnosisState) -> Launch | None:
    """The last launch before this one that wrote a tensor."""
    writers = case.view.writers_of_name.get(name, ()) if case.view is not None else ()
    before = [number for number in writers if number < launch.index]
    return case.launches[before[-1]] if before else None


# Launches that write at an index. Of these, only index_put counts negative indices from the end.
# Wrappers of torch <= 2.13 call the shims of scatter and index_put without the error check
# (cpp_wrapper_cpu.py:1885-1916): on the CPU an index out of range then changes nothing, silently. On
# CUDA the assertion is in ATen's own kernel, and no generated line names it.
INDEXING = ("scatter", "index_put", "index_add", "index_copy")


def indexing_launches(case: DiagnosisState) -> list[Launch]:
    return [launch for launch in case.launches if any(word in launch.kernel for word in INDEXING)]


def watched_indices(case: DiagnosisState) -> Iterator[Index]:
    """Indices in watched launches that are outside the dimension which the launch writes."""
    launches = {launch.index: launch for launch in indexing_launches(case)}
    for watched in case.kernel_io.launches if case.kernel_io is not None else ():
        launch = launches.get(watched.launch) if watched.launch is not None else None
        if launch is None:
            continue
        named = {a.name: a for a in watched.arguments if a.when == "before"}
        for name, bound in operator_bounds(launch, watched.arguments).items():
            least, most, low, high = named[name].min or 0, named[name].max, bound.low or 0, bound.high or 0
            if most is not None and (most >= high or least < low):
                maker, holds = _maker(name, launch, case), f"{least:.0f} to {most:.0f}"
                yield Index(launch, low, high - 1, variable=name, maker=maker, holds=holds)
