"""Traces failures inside a kernel: a failed index assertion, or a division by zero.

For an assertion, it finds the kernel, launch, bound, origin of the index, and a fix. If an error text matches
several asserts or launches, each is a candidate.

For a division, it finds the divisions in C++ kernels whose divisor may be zero, and the origin of the
divisor. The CPU raises SIGFPE for an integer division by zero. From torch 2.13 on most forms raise
`ZeroDivisionError` instead, which names no kernel. The forms are from torch/_inductor/codegen/cpp.py, 2.8 to
2.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Fix, outside, rejecting
from mcp_server.package.exported import Provenance, indexing_first
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.symbols import Bound, plain, resolve_bound
from mcp_server.package.terms.accesses import indexed_by
from mcp_server.package.terms.linear import (
    IndexForm,
    Limit,
    allowed_elements,
    name_of,
    position_limit,
    read_form,
)
from mcp_server.package.terms.parts import elements, parts, unwrapped
from mcp_server.package.terms.program import Check, read_program
from mcp_server.package.terms.sizes import IndexAssert, find_asserts, read_condition, without_broadcast
from mcp_server.package.terms.term import Apply, Element, Number, Term, Unread, is_float

if TYPE_CHECKING:
    from mcp_server.package.view import PackageView

_TEXT = re.compile(
    r"(?:index out of bounds: )?((?:(?:-|(?<!\w))\w+ <= \w+(?: < [^`'\"\n]+?)?)|(?:\btmp\w* < [^`'\"\n]+?))"
    r"(?=[`'\"\n]| failed|$)"
)
_DEVICE = re.compile(r"(?<![^\s:`])(?P<file>[^\s:`]*\.py):(?P<line>\d{1,9}): ")
_HOST = re.compile(r"Exception raised from (?P<kernel>\w+) at (?P<file>\S+?\.cpp):(?P<line>\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Assertion:
    """A parsed error text. `line` is in the generated file; only the C++ form names the `kernel`."""

    condition: str
    file: str | None = None
    line: int | None = None
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class IndexSource:
    """A tensor from which the index was loaded.

    `tensor` is the variable in the wrapper. `producers` are the launches that last wrote it (perhaps the one
    that asserts). Empty for an unmodified input or constant. `inputs` are the labels of all model inputs that
    it depends on. `allowed` is the range of its values that pass the check. None if unknown.
    """

    load: Element
    tensor: str
    kind: str
    label: str
    producers: tuple[int, ...]
    inputs: tuple[str, ...]
    allowed: Limit | None = None

    @property
    def direct(self) -> bool:
        """Whether this is an unmodified model input."""
        return self.kind == "input" and not self.producers


@dataclass(frozen=True, slots=True)
class Candidate:
    """One launch at which the assertion may have failed.

    `location` is `wrapper.cpp:LINE` for Triton (its source is embedded there) and `kernel.cpp:LINE` for C++.
    `value` is the index. `indexed` are the tensors that it addresses. `form` is the index as a linear sum of
    loaded elements. None if it is not linear. If the index is a loop position, it runs from 0 to below
    `position`. In `provenance`, lines that index come first.
    """

    launch: Launch
    kernel: Kernel
    check: IndexAssert
    location: str
    bound: Bound | None
    value: Term
    sources: tuple[IndexSource, ...]
    indexed: tuple[str, ...]
    provenance: Provenance
    form: IndexForm | None = None
    position: Bound | None = None

    @property
    def wraps(self) -> bool:
        """Whether negative indices are first increased by the bound, as in Python indexing."""
        return unwrapped(self.value) is not self.value

    @property
    def lowest(self) -> str:
        """The smallest index that passes, as text; negative if the kernel wraps negative indices."""
        if not self.wraps or self.bound is None:
            return self.check.lower or "0"
        value = self.bound.value
        return str(-value) if value is not None else f"-({self.bound.expression})"


@dataclass(frozen=True)
class Tracer:
    """Traces assertions through one package."""

    view: PackageView

    def trace(self, assertion: Assertion) -> tuple[Candidate, ...]:
        """List every launch that may have printed the assertion, in execution order; may be empty.

        All checks with its condition match. Kernel, line and file narrow them, unless none would remain.
        """
        same = self._checks.get(assertion.condition, [])
        named = [(k, c) for k, c in same if assertion.kernel in (None, k.name, k.symbol)] or same
        left = [(k, c) for k, c in named if assertion.line in (None, generated_line(k, c.line))] or named
        if len(left) > 1 and assertion.file:
            names = self.view.kernels_of_file(assertion.file)
            left = [(k, c) for k, c in left if k.name in names] or left
        return self._candidates(left)

    def every(self) -> tuple[Candidate, ...]:
        """List every index check of each launch, in execution order."""
        return self._candidates(chain(*self._checks.values()))

    def _candidates(self, checks: Iterable[tuple[Kernel, IndexAssert]]) -> tuple[Candidate, ...]:
        found = [
            self._candidate(self.view.wrapper.launches[number], kernel, check)
            for kernel, check in checks
            for number in self.view.wrapper.launches_of.get(kernel.name, [])
        ]
        return tuple(sorted(found, key=lambda candidate: (candidate.launch.index, candidate.check.line)))

    @cached_property
    def divisions(self) -> tuple[Division, ...]:
        """The divisions of integers whose divisor may be zero."""
        return _divisions(self, floats=False)

    @cached_property
    def float_divisions(self) -> tuple[Division, ...]:
        """The divisions of floats whose divisor is an element times a number."""
        return _divisions(self, floats=True)

    @cached_property
    def _checks(self) -> dict[str, list[tuple[Kernel, IndexAssert]]]:
        """Every index assert of the package, by its condition."""
        found: dict[str, list[tuple[Kernel, IndexAssert]]] = {}
        for kernel in self.view.wrapper.kernels.values():
            for check in find_asserts(kernel.source):
                found.setdefault(plain(check.text), []).append((kernel, check))
        return found

    def _candidate(self, launch: Launch, kernel: Kernel, check: IndexAssert) -> Candidate:
        program = read_program(kernel)
        made = program.check_at(check.line) or Check(check.line, Unread(check.variable), None, None, ())
        value, loads = made.value, elements(made.value)
        form = read_form(value, loads)
        limit = None if loads else position_limit(value, made.ranges)
        targets = {argument.name: argument.target for argument in launch.tensors}
        indexed = dict.fromkeys(targets[name] for _, name in indexed_by(program, made, targets))
        constants, symbols = self.view.package.constants, self.view.wrapper.symbols
        fqns = [constant.fqn for constant in constants if constant.name in indexed]
        sources, ends = [], Limit.of_check(check.lower, check.upper)
        for load in loads:
            allowed = allowed_elements(form, load, ends) if form else None
            sources.append(replace(self.source(load, launch), allowed=allowed))
        bound, position = (
            resolve_bound(text, launch, symbols, self.view.package.inputs) if text else None
            for text in (check.upper, limit)
        )
        return Candidate(
            launch,
            kernel,
            check,
            source_location(kernel, check.line),
            bound,
            value,
            tuple(sources),
            tuple(dict.fromkeys(map(self.view.label, indexed))),
            indexing_first(self.view.provenance(launch), fqns),
            form,
            position,
        )

    def source(self, load: Element, launch: Launch) -> IndexSource:
        """The tensor that a load in a launch reads, with its producers and model inputs."""
        argument = next(argument for argument in launch.arguments if argument.name == load.parameter)
        name = argument.target or ""
        written_here = argument.role == "written"
        flow, label = self.view.flow, self.view.label
        behind = flow.backward_from(launch.index) if written_here else flow.backward(name, launch.index)
        producers = (launch.index,) if written_here else tuple(flow.writing_launches(name, launch.index))
        kind = "input" if not producers and len(behind.inputs) == 1 else argument.kind
        inputs = tuple(map(label, behind.inputs))
        own = inputs[0] if kind == "input" and inputs else label(name)
        return IndexSource(load, name, kind, own, producers, inputs)


def read_assertion(
    text: str, file: str | None = None, line: int | None = None, kernel: str | None = None
) -> Assertion | None:
    """Parse an error text or a bare condition. None if it contains no index assertion."""
    text = without_broadcast(text)
    match = _TEXT.search(text.strip())
    condition = plain(match[1].strip()) if match else ""
    if read_condition(condition) is None:
        return None
    host = _HOST.search(text)
    location = host or _DEVICE.search(text)
    if location is not None:
        file, line = file or location["file"], line or int(location["line"])
    return Assertion(condition, file, line, kernel or (host["kernel"] if host else None))


def assertion_of(error: ErrorFact) -> Assertion | None:
    """The assertion in an error of a log. A C++ kernel raises its error on the line of the check."""
    fields, kernel = error.fields, error.fields.get("kernel")
    raised = fields if kernel else {}
    line = fields.get("line") or raised.get("raised_line") or ""
    file = fields.get("file") or raised.get("raised_file")
    return read_assertion(error.text, file, int(line) if line.isdigit() else None, kernel)


def generated_line(kernel: Kernel, line: int) -> int:
    """The line that an error prints, in the embedded Triton text or in kernel.cpp (torch 2.8-2.15)."""
    return line if kernel.kind != "cpp" else kernel.first_line + line - 1


def source_location(kernel: Kernel, line: int) -> str:
    """FILE:LINE in the package for a 1-based line of a kernel's source."""
    return f"{kernel.file}:{kernel.first_line + line - 1}"


def explain(candidate: Candidate) -> tuple[str, ...]:
    """Describe the chain from the launch to the origin of the index, one sentence for each fact."""
    bound, form = candidate.bound, candidate.form
    facts = [f"launch {candidate.launch.index} of {candidate.kernel.name} checks it at {candidate.location}"]
    if bound:
        facts.append(f"the bound is {bound.describe()}")
    if candidate.indexed:
        facts.append(f"the index addresses {', '.join(candidate.indexed)}")
    if candidate.position is not None:
        end = candidate.position.describe()
        facts.append(f"the index comes from no data: it is a position, from 0 to below {end}")
    elif not candidate.sources:
        facts.append("where the index comes from could not be followed inside the kernel")
    elif form is None:
        how = "the kernel uses more than sums to compute the index"
        facts.append(f"{how}: which values it may read is not known")
    elif not form.is_plain:
        facts.append(_formula(form, candidate))
    for source in candidate.sources:
        ends = source.allowed.texts(lambda name: _size_in_words(name, candidate)) if source.allowed else None
        limits = f"; it may be {ends[0]} to {ends[1]}" if ends else ""
        facts.append(f"{_origin(source, candidate)}{limits}")
    if candidate.wraps:
        facts.append(f"negative indices count from the end: allowed down to {candidate.lowest}")
    elif candidate.position is None:
        facts.append("negative indices are refused: the kernel does not wrap them")
    if bound and bound.value is None:
        facts.append(_if_shorter(bound))
    return tuple(facts)


def _formula(form: IndexForm, candidate: Candidate) -> str:
    """Say, for example, `the index is 2*x + 1, x being a value of input 0 (ids)`."""
    letters = dict(zip(form.loads, "xyzuvw", strict=False))
    labels = {source.load: source.label for source in candidate.sources}
    formula = form.linear.text("*", lambda name: letters.get(name) or _size_in_words(name, candidate))
    elements = [f"{letters[n]} being a value of {labels[form.loads[n]]}" for n in letters]
    return ", ".join([f"the index is {formula}", *elements])


def _if_shorter(bound: Bound) -> str:
    """Say that an empty or shorter tensor can also fail the check."""
    sizes = " or ".join(dict.fromkeys(size.label or size.tensor for size in bound.sizes))
    shorter = f"a shorter {sizes or bound.expression} with the same indices fails the check"
    if bound.smallest is None:
        return shorter
    within = f"an empty one is outside its range (at least {bound.smallest})"
    return f"{shorter}; {within if bound.smallest else 'with an empty one every index fails'}"


def _origin(source: IndexSource, candidate: Candidate) -> str:
    plain = candidate.form is not None and candidate.form.is_plain
    what = "the index is" if plain else "the kernel reads"
    if source.direct:
        return f"{what} a value of {source.label}, as given"
    if source.producers:
        launches = ", ".join(map(str, source.producers))
        here = " (this one)" if source.producers == (candidate.launch.index,) else ""
        behind = f", which depends on {', '.join(source.inputs)}" if source.inputs else ""
        return f"{what} a value of {source.tensor}, written by launch {launches}{here}{behind}"
    return f"{what} a value of {source.label}"


def propose(candidate: Candidate) -> Fix:
    """Propose a check before the call for an input or position as the index, else a change in the model."""
    position, bound = candidate.position, candidate.bound
    if position is not None and bound is not None:
        size, limit = _host_size(position.text, candidate), _host_size(bound.text, candidate)
        return Fix(
            text=f"keep {size} at {limit} or less, or enlarge what is indexed with positions up to this size",
            after=rejecting(f"{size} > {limit}", f"{size} must be at most {limit}"),
        )
    for source in candidate.sources:
        ends = source.allowed.texts(lambda name: _host_size(name, candidate)) if source.allowed else None
        if source.direct and ends is not None:
            name = without_number(source.label)
            return Fix(
                text=f"pass only values from {ends[0]} to {ends[1]} in {source.label}",
                after=outside(name, *ends),
            )
    last = "size - 1"
    if bound is not None:
        last = f"{_host_size(bound.text, candidate)} - 1" if bound.value is None else str(bound.value - 1)
    locations = candidate.provenance.locations
    where = f" at {locations[0].file}:{locations[0].line}" if locations else ""
    named = sorted({label for source in candidate.sources for label in source.inputs})
    refused = (
        f"refuse the values of {', '.join(named)} that lead to it" if named else "correct how it is made"
    )
    allowed = f"{candidate.lowest if candidate.wraps else 0}..{last}"
    return Fix(text=f"the index computed{where} must be in {allowed}: {refused}")


def _size_in_words(name: str, candidate: Candidate) -> str:
    """The wrapper expression passed for a kernel argument: `s77` for `ks0`."""
    return plain(candidate.launch.passed.get(name, name))


def _host_size(text: str, candidate: Candidate) -> str:
    """Express a bound in terms of the caller's inputs: `ids.shape[1]` for the kernel's `ks0`."""
    bounds = [bound for bound in (candidate.bound, candidate.position) if bound and bound.text == text]
    expression = bounds[0].expression if bounds else _size_in_words(text, candidate)
    sizes = {size.symbol: size for bound in bounds for size in bound.sizes}
    size = sizes.get(expression)
    if size is None or size.dim is None:
        return expression
    return f"{without_number(size.label or size.tensor)}.shape[{size.dim}]"


def without_number(label: str) -> str:
    """`ids` for the label `input 0 (ids)`, and a label without parentheses unchanged."""
    inner = label.rpartition("(")[2].rstrip(")")
    return inner or label


_DIVIDES = frozenset({"div", "truncdiv", "floordiv", "mod", "remainder"})


@dataclass(frozen=True, slots=True)
class Division:
    """One division in a launch, by a loaded value or a literal 0.

    `sources` are the tensors from which the divisor is loaded. Empty for a literal. `plain`: the divisor is
    one unmodified element, or a float element times a number.
    """

    launch: Launch
    location: str
    code: str
    sources: tuple[IndexSource, ...]
    plain: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """The labels of the model inputs that the divisor depends on."""
        return tuple(dict.fromkeys(label for source in self.sources for label in source.inputs))


def _divisions(tracer: Tracer, *, floats: bool) -> tuple[Division, ...]:
    """List the divisions of integers (or of floats) in C++ kernels whose divisor may be zero, each once."""
    found: dict[tuple[object, ...], Division] = {}
    for launch in tracer.view.wrapper.launches:
        kernel = tracer.view.wrapper.kernels.get(launch.kernel) if launch.kind == "cpp" else None
        if kernel is None:
            continue
        lines = kernel.source.split("\n")
        for defined in read_program(kernel).definitions:
            for divisor in _divisors(defined.value, floats=floats):
                loads = elements(divisor)
                form = None if floats else read_form(divisor, loads)
                sources = tuple(tracer.source(load, launch) for load in loads)
                plain = _is_multiple(divisor) or (len(sources) == 1 and form is not None and form.is_plain)
                place, code = source_location(kernel, defined.line), lines[defined.line - 1].strip()
                division = Division(launch, place, code, sources, plain)
                # Keep the first: a scalar tail repeats the divisions of its vector loop, and a value those of
                # its operands.
                loaded = tuple((source.tensor, name_of(source.load)) for source in sources)
                found.setdefault((launch.index, loaded), division)
    return tuple(found.values())


def _is_multiple(term: Term) -> bool:
    """Whether a term is a float element times nonzero numbers, so that it is 0 exactly if the element is."""
    match term:
        case Apply(op="mul", args=(Number(value=value), inner) | (inner, Number(value=value))) if value:
            return _is_multiple(inner)
        case Apply(op="div", args=(inner, Number(value=value))) if value:
            return _is_multiple(inner)
    return isinstance(term, Element) and is_float(term.dtype)


def _divisors(value: Term, *, floats: bool) -> Iterator[Term]:
    """Yield divisors that may be 0: multiples of float elements (`floats`), or integers with a load or 0."""
    for term in parts(value):
        if not isinstance(term, Apply) or term.op not in _DIVIDES or len(term.args) != 2:
            continue
        divisor = term.args[1]
        read = [each for each in parts(divisor) if not isinstance(each, Unread)]
        zero = any(isinstance(each, Number) and each.value == 0 for each in read)
        whole = not any(is_float(each.dtype) for each in (term, *read))
        if _is_multiple(divisor) if floats else whole and (elements(divisor) or zero):
            yield divisor
