"""Which elements of an input a checked index can be, from the index expression of its load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from mcp_server.diagnosis.case import Case
from mcp_server.evidence.facts import ErrorFact
from mcp_server.package.arithmetic import evaluate, names_in
from mcp_server.package.assertion import Candidate, IndexSource, read_assertion
from mcp_server.package.ranges import symbol_values

INDEX_FAMILIES = frozenset({"aten_assert", "device_assert_index", "cpu_index_assert"})


@dataclass(frozen=True)
class IndexPart:
    """Elements offset, offset + stride, … of a flat input that must lie in [low, high].

    With `unlike` they may be anything but that number.
    """

    input: int
    offset: int
    stride: int
    low: int
    high: int
    unlike: int | None = None

    def request(self) -> dict[str, int]:
        """As the worker's `index_values` takes it."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class CheckedInput:
    """A candidate of the trace with the part of an input that it reads directly."""

    candidate: Candidate
    source: IndexSource
    part: IndexPart


def index_error(case: Case) -> ErrorFact | None:
    """The index assertion that some run or the given log ended with."""
    for _, facts in case.logs:
        for error in facts.errors:
            if error.family.id in INDEX_FAMILIES:
                return error
    return None


def candidates(case: Case) -> tuple[Candidate, ...]:
    """The launches at which the seen assertion may have failed."""
    error = index_error(case)
    if error is None or case.view is None:
        return ()
    fields = error.fields
    line = _line(fields)
    assertion = read_assertion(error.text, fields.get("file"), line, fields.get("kernel"))
    return case.view.tracer.trace(assertion) if assertion is not None else ()


def _line(fields: Mapping[str, str]) -> int | None:
    """The line of the check: a C++ kernel's stands where the error was raised (torch 2.8-2.15)."""
    text = fields.get("line") or (fields.get("raised_line") if fields.get("kernel") else None) or ""
    return int(text) if text.isdigit() else None


def checked_inputs(case: Case) -> list[CheckedInput]:
    """Candidates whose index is an element of an input, as the caller gave it."""
    return [suspect for candidate in candidates(case) for suspect in _of(candidate, case)]


def _of(candidate: Candidate, case: Case) -> Iterator[CheckedInput]:
    for source in candidate.sources:
        index = _input_index(source, case)
        place = affine(source.load.index)
        ends = _allowed(candidate, source, case)
        if source.direct and index is not None and ends is not None and place is not None:
            yield CheckedInput(candidate, source, IndexPart(index, *place, *ends))


def whole_part(candidate: Candidate, case: Case) -> IndexPart | None:
    """The elements of the only input behind a check whose kernel does to them what has no inverse.

    A label that is ignored, say, is replaced before it is used: elements within the bound pass all the same,
    and one outside of it is the first to suspect.
    """
    source = candidate.sources[0] if len(candidate.sources) == 1 else None
    if source is None or not source.direct or case.package is None:
        return None
    index, place = _input_index(source, case), affine(source.load.index)
    bound = bound_value(candidate, case)
    if index is None or place is None or bound is None or _allowed(candidate, source, case) is not None:
        return None
    whole = (case.package.inputs[index].dtype or "").startswith(("int", "uint"))
    low = int(candidate.lowest) if re.fullmatch(r"-?\d+", candidate.lowest) else 0
    return IndexPart(index, *place, low, bound - 1) if whole else None


def _allowed(candidate: Candidate, source: IndexSource, case: Case) -> tuple[int, int] | None:
    """What an element may be in this call, both ends inclusive; None where the kernel does more than sums."""
    if source.allowed is None:
        return None
    given = {a.name: a.expression for a in candidate.launch.arguments if a.name and not a.is_tensor}
    sizes = symbol_values(case.package.signature, case.given.tensors) if case.package and case.given else {}
    values = {name: evaluate(text, sizes) for name, text in given.items()}
    return source.allowed.numbers({n: int(v) for n, v in values.items() if v is not None})


def bound_value(candidate: Candidate, case: Case) -> int | None:
    """The bound as a number, with the sizes of this call."""
    if candidate.bound is None:
        return None
    if candidate.bound.value is not None:
        return candidate.bound.value
    if case.package is None or case.given is None:
        return None
    values = symbol_values(case.package.signature, case.given.tensors)
    value = evaluate(candidate.bound.expression, values)
    return int(value) if value is not None and value.denominator == 1 else None


def _input_index(source: IndexSource, case: Case) -> int | None:
    assert case.package is not None
    return next((i.index for i in case.package.inputs if i.label == source.label), None)


def affine(index: str) -> tuple[int, int] | None:
    """(offset, stride) of an index expression that is linear in loop variables; None when it is not.

    With several variables the stride is the greatest common divisor of their factors, so that the elements
    named are at least those that are read.
    """
    names = names_in(index)
    zero = dict.fromkeys(names, 0)
    offset = evaluate(index, zero)
    if offset is None or offset.denominator != 1:
        return None
    factors = []
    for name in names:
        once, thrice = (evaluate(index, {**zero, name: value}) for value in (1, 3))
        if once is None or thrice is None or (thrice - offset) != 3 * (once - offset):
            return None
        factors.append(int(once - offset))
    return int(offset), gcd(*factors) if factors else 1
