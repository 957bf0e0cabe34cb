"""Finds defects of kernels that their code and the sizes of a call reveal; nothing is run.

A defect is shown by lanes evaluated as the kernel would evaluate them, never by an estimate. Whatever depends
on loaded data, on a branch, or on code that was not understood is left open.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mcp_server.package.assertion import source_location, without_number
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Buffer, Launch, shifted
from mcp_server.package.symbols import known_sizes, scalar_values
from mcp_server.package.terms.accesses import Lane, Spans, lanes, read_accesses, used
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.interval import limits
from mcp_server.package.terms.parts import elements, free_positions, parts, say
from mcp_server.package.terms.program import Access, Program, Store, read_program
from mcp_server.package.terms.sizes import evaluate_whole, index_at, reached, size_term
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Scalar,
    Size,
    Term,
    dtype_of,
    is_float,
    itemsize_of,
)
from mcp_server.package.terms.triton_calls import signature_of
from mcp_server.package.view import PackageView

FindingKind = Literal[
    "overflow",
    "beyond",
    "never_stored",
    "grid",
    "narrow",
    "uncovered",
    "clash",
    "lost",
    "unset",
    "gap",
    "retyped",
    "raced",
]
GRID_LIMITS = ((1 << 31) - 1, 65_535, 65_535)  # most blocks in x, y and z, on every CUDA architecture
# By grid class: the kernel's constant that equals the number of blocks on an axis, and this axis
# (triton_heuristics.py, torch 2.8-2.15).
_BY_GRID = {"CooperativeReductionGrid": ("RSPLIT", 0)}
_OPEN = (UnknownValue, RecursionError, OverflowError, ValueError)  # all but the first come from hostile text
_MOST_LANES = 1 << 14
_FIRST_PROGRAMS = 2  # programs along each axis of a grid
_POINTERS = re.compile(r"(?P<name>\w+)\.to\(tl\.pointer_type\((?P<dtype>[\w.]+)\)")
_MOST_BASES = 32  # bases of a view; in damaged text, a buffer may be its own base
_GROWING = ("add", "sub", "mul", "lshift")
_NARROW = ("int8", "int16", "int32")
_LARGEST = 1 << 40  # largest number of elements of an input


@dataclass(frozen=True)
class Finding:
    """A defect of a kernel at one launch. `line` is 1-based in its source; 0 means the launch itself."""

    kind: FindingKind
    launch: int
    kernel: str
    parameter: str
    line: int
    location: str
    sentence: str


def find_kernel_defects(view: PackageView, given: Mapping[str, int]) -> list[Finding]:
    """List the defects that kernels have for these values of the symbols, each once, at its first launch."""
    found: dict[tuple[str, str, str], Finding] = {}
    known = known_sizes(view.wrapper.symbols, given)
    for launch in view.wrapper.launches:
        kernel = view.wrapper.kernels.get(launch.kernel)
        for each in _Launched(view, launch, kernel, known).findings() if kernel is not None else ():
            found.setdefault((each.kernel, each.kind, each.parameter), each)
    return list(found.values())


def narrow_arithmetic(view: PackageView) -> list[Finding]:
    """Find, in each kernel, the first integer arithmetic on loaded values in fewer than 64 bits.

    It may overflow, or wrap on purpose. Only the same call computed in 64 bits can tell.
    """
    found: dict[str, Finding] = {}
    for launch in view.wrapper.launches:
        kernel = view.wrapper.kernels.get(launch.kernel)
        if kernel is None or kernel.name in found:
            continue
        program = read_program(kernel)
        # Checks first: in Triton, a check has the index alone, a store the whole address.
        terms = [each.value for each in program.checks]
        terms += [term for each in program.stores for term in (each.value, each.index)]
        narrow = next(filter(None, map(_narrow, terms)), None)
        if narrow is not None:
            what = f"{kernel.name} (launch {launch.index}) computes {_in_model(narrow, launch, view)}."
            found[kernel.name] = Finding("narrow", launch.index, kernel.name, "", 0, "", what)
    return list(found.values())


def narrow_addresses(view: PackageView, given: Mapping[str, int]) -> list[tuple[str, int]]:
    """List (kernel, line) where a user's kernel indexes a tensor of over 2**31 elements in < 64 bits."""
    found: dict[tuple[str, int], None] = {}
    known = known_sizes(view.wrapper.symbols, given)
    for launch in view.wrapper.launches:
        kernel = view.wrapper.kernels.get(launch.kernel)
        if kernel is not None and kernel.kind == "user_triton":
            lines = _Launched(view, launch, kernel, known).far_lines()
            found |= dict.fromkeys((kernel.name, line) for line in lines)
    return list(found)


def _in_model(term: Apply, launch: Launch, view: PackageView) -> str:
    """Describe the arithmetic using the caller's names for the launch's arguments."""
    labels = {each.name: without_number(view.label(each.target)) for each in launch.tensors}
    text = say(term, lambda element: labels.get(element.parameter, element.parameter))
    return f"`{text}` in {itemsize_of(term.dtype) * 8} bits, where it may not fit"


def _narrow(term: Term) -> Apply | None:
    """The largest part of a term that is narrow integer arithmetic, or None."""
    every = [each for each in parts(term, inside_indices=True) if isinstance(each, Apply)]
    narrow = [e for e in every if e.op in _GROWING and e.dtype in _NARROW and elements(e)]
    return max(narrow, key=lambda each: len(say(each)), default=None)


def largest_sizes(view: PackageView) -> dict[str, int]:
    """The largest value that each size expression may have, in inputs of up to `_LARGEST` elements."""
    found: dict[str, int] = {}
    for each in view.package.inputs:
        sizes = [(dim.expression, dim.size if dim.size is not None else dim.upper) for dim in each.dims]
        most = [size for _, size in sizes if size is not None]
        if len(most) == len(sizes) and math.prod(most) <= _LARGEST:
            found |= {name: size for name, size in sizes if name is not None and size is not None}
    return found


class _Launched:
    """A kernel with the sizes of one launch."""

    def __init__(self, view: PackageView, launch: Launch, kernel: Kernel, known: Mapping[str, int]) -> None:
        self.view, self.launch, self.kernel, self.known = view, launch, kernel, known
        self.sizes = scalar_values(launch, known)
        self.grid = [self._blocks(text) for text in kernel.grid]
        for axis, blocks in enumerate(self.grid):
            if blocks is not None:
                self.sizes[f"tl.num_programs({axis})"] = blocks
                tuned = [
                    name for grid, (name, at) in _BY_GRID.items() if at == axis and grid in kernel.source
                ]
                self.sizes |= dict.fromkeys(tuned, blocks)

    def _blocks(self, text: str) -> int | None:
        term = size_term(text)
        try:
            return int(Lane({}, self.sizes).value(term)) if term is not None else None
        except _OPEN:
            return None

    def findings(self) -> Iterator[Finding]:
        """Yield all defects."""
        yield from self._grid()
        yield from self._never_stored()
        if self.kernel.kind == "user_triton" and 0 not in self.grid:
            yield from self._of_user()
        accesses = [] if 0 in self.grid else list(read_accesses(self.kernel))
        accesses.sort(key=lambda each: (each.line, each.kind == "load"))  # sort the stores of a line first
        for access in accesses:
            try:
                spans = Spans(access, self.sizes)
                found = None if spans.empty else self._overflow(access, spans) or self._beyond(access, spans)
            except _OPEN:
                continue
            if found is not None:
                yield found

    def _found(self, kind: FindingKind, parameter: str, line: int, what: str) -> Finding:
        place = source_location(self.kernel, line) if line else f"wrapper.cpp:{self.launch.line}"
        sentence = f"{self.kernel.name} (launch {self.launch.index}) {what}."
        return Finding(kind, self.launch.index, self.kernel.name, parameter, line, place, sentence)

    def _grid(self) -> Iterator[Finding]:
        if self.kernel.kind == "cpp" or self.view.package.device_type != "cuda":
            return
        for axis, (count, limit) in enumerate(zip(self.grid, GRID_LIMITS, strict=False)):
            if count is not None and count > limit:
                name, text = "xyz"[axis], self.view.wrapper.grid(self.launch)[axis]
                asked = f"asks for {count:,} blocks in {name} ({text}{_with(self.known, text)})"
                yield self._found("grid", name, 0, f"{asked}, and the driver allows {limit:,}")

    def _never_stored(self) -> Iterator[Finding]:
        for argument in self.launch.tensors:
            if argument.role == "read" or not argument.name or not never_stored(self.kernel, argument.name):
                continue
            # Inductor drops a store whose value nothing reads, but keeps its parameter.
            after = self.view.flow_of(self.launch).forward([argument.target or ""], self.launch.index)
            if after.steps or after.outputs:
                label, sizes = self.view.label(argument.target), self._shape(argument)
                what = f"has {argument.name} as an output ({label}, {sizes}) and never stores to it"
                yield self._found("never_stored", argument.name, 1, what)

    def _shape(self, argument: Argument) -> str:
        layout = self._layout(argument)
        return f"shape {list(layout[0])}" if layout is not None else "of unknown shape"

    # Defects that only a user's kernel may have.

    def far_lines(self) -> Iterator[int]:
        """Yield lines that compute an address in a tensor of over 2**31 elements in fewer than 64 bits."""
        package, known = self.view.package, self.known
        shapes = {each.name: list(each.shape) for each in package.constants}
        for item in package.inputs:
            shapes[item.name] = [dim.size or known.get(dim.expression or "", 0) for dim in item.dims]
        large = {name for name, shape in shapes.items() if math.prod(shape) > 1 << 31}
        for access in read_program(self.kernel).accesses:
            passed = self._passed(access)
            if passed is not None and passed.target in large and _narrow(access.index) is not None:
                yield access.line

    def _of_user(self) -> Iterator[Finding]:
        program = read_program(self.kernel)
        raced = partial(self._raced, program=program)
        for check in (self._clash, self._lost, self._gap, self._retyped, raced):
            for access in program.accesses:
                try:
                    found = check(access) if access.parameter and not access.place.others else None
                except _OPEN:
                    continue
                if found is not None:
                    yield found
        for argument in self.launch.tensors:
            with contextlib.suppress(*_OPEN):
                if (
                    found := self._unset(argument, program) or self._uncovered(argument, program)
                ) is not None:
                    yield found

    def _clash(self, access: Access) -> Finding | None:
        """Find a plain store with which programs of the grid write different values to one element."""
        if not isinstance(access, Store) or access.kind != "store":
            return None
        placed = set(free_positions(*access.decided_by))
        for axis, blocks in enumerate(self.grid):
            name = f"tl.program_id({axis})"
            if (
                blocks is not None
                and blocks > 1
                and name in free_positions(access.value)
                and name not in placed
            ):
                what = (
                    f"stores to {access.parameter} at the same elements in all {blocks:,} programs of {name}"
                )
                return self._found(
                    "clash", access.parameter, access.line, f"{what}, so only one result is kept"
                )
        return None

    def _lost(self, access: Access) -> Finding | None:
        """Find an addition to an element at a loaded index without an atomic operation."""
        if not isinstance(access, Store) or access.kind != "store" or not access.place.is_loaded:
            return None
        own = [each for each in elements(access.value) if each.parameter == access.parameter]
        if not any(say(each.index) == say(access.index) for each in own):
            return None
        indexed = dict.fromkeys(e.parameter for part, _ in access.place.parts for e in elements(part))
        what = (
            f"adds to {access.parameter} without an atomic operation at an index from {', '.join(indexed)}: "
        )
        what += "if it occurs twice, a sum is lost"
        return self._found("lost", access.parameter, access.line, what)

    def _gap(self, access: Access) -> Finding | None:
        """Find an access to memory between the elements of a tensor that is not contiguous."""
        argument = self._passed(access)
        layout = self._layout(argument) if argument is not None else None
        if argument is None or layout is None or not access.is_understood:
            return None
        sizes, strides = layout
        if math.prod(sizes) == reached(sizes, strides)[1]:
            return None
        for lane in lanes(access, self.sizes):
            at = lane.offset(access)
            if at is not None and index_at(at // access.place.itemsize, sizes, strides) is None:
                text = f"{' + '.join(_index(access))}"
                what = f"takes {access.parameter} at {text}{self._with(lane, text)}, which is no element of "
                what += (
                    f"{self.view.label(argument.target)}, of shape {list(sizes)} and strides {list(strides)}"
                )
                return self._found("gap", access.parameter, access.line, what)
        return None

    def _retyped(self, access: Access) -> Finding | None:
        """Find a pointer that is converted to a floating dtype other than its tensor's."""
        source, name = self.kernel.source, access.parameter
        own = dtype_of(signature_of(source).get(name, "")) or ""
        text = next((each for each in _POINTERS.finditer(source) if each["name"] == name), None)
        used_as = dtype_of(text["dtype"]) if text is not None else None
        if text is None or used_as in (None, own) or not (is_float(own) and is_float(str(used_as))):
            return None
        line = source.count("\n", 0, text.start()) + 1
        return self._found("retyped", name, line, f"reads {name}, which is {own}, as {used_as}")

    def _raced(self, access: Access, program: Program) -> Finding | None:
        """Find a read of an element that another program of the grid stores: nothing orders the two."""
        stores = [each for each in program.stores_to(access.parameter) if each.kind == "store"]
        alike = any(say(each.index) == say(access.index) for each in stores)
        if access.kind != "load" or not stores or alike or not access.is_understood:
            return None
        read = self._by_program(access)
        for store in stores:
            written = self._by_program(store)
            other = next((at for at, own in read.items() if written.get(at, own) != own), None)
            if other is not None:
                element, name = other // access.place.itemsize, access.parameter
                what = f"reads {name}[{element}] in program {read[other]} of its grid, and stores to it in "
                what += f"program {written[other]}: the second may come first"
                return self._found("raced", name, access.line, what)
        return None

    def _by_program(self, access: Access) -> dict[int, tuple[int, ...]]:
        """Map each byte offset to one of the first programs that accesses it. Empty for too many lanes."""
        spans = {each.name: Lane({}, self.sizes).span(each) for each in access.ranges}
        own = [name for name in spans if name.startswith("tl.program_id")]
        spans |= {name: spans[name][:_FIRST_PROGRAMS] for name in own}
        if math.prod(map(len, spans.values())) > _MOST_LANES:
            return {}
        found: dict[int, tuple[int, ...]] = {}
        for chosen in itertools.product(*spans.values()):
            place = dict(zip(spans, chosen, strict=True))
            at = Lane(place, self.sizes).offset(access)
            if at is not None:
                found[at] = tuple(place[name] for name in sorted(own))
        return found

    def _unset(self, argument: Argument, program: Program) -> Finding | None:
        """Find memory that the kernel reads or updates before anything wrote it."""
        if not self._is_fresh(argument):
            return None
        mine = [each for each in program.accesses if argument.name in (each.parameter, *each.place.others)]
        stores = [each.line for each in mine if isinstance(each, Store) and each.kind == "store"]
        reads = [each for each in mine if each.kind != "store"]
        first = next((each for each in reads if not stores or each.line <= min(stores)), None)
        if first is None:
            return None
        verb = "updates" if first.kind == "update" else "reads"
        what = f"{verb} {argument.name}, which is new memory ({argument.target}, {self._shape(argument)}): "
        return self._found("unset", argument.name, first.line, f"{what}nothing has filled it before")

    def _uncovered(self, argument: Argument, program: Program) -> Finding | None:
        """Find a new tensor that has more elements than the kernel stores."""
        stores = program.stores_to(argument.name)
        layout = self._layout(argument)
        if not stores or layout is None or program.unread or not self._is_fresh(argument):
            return None
        if not all(each.kind == "store" and each.parameter for each in program.stores):
            return None
        most, count = sum(self._most(each) for each in stores), math.prod(layout[0])
        if most >= count or not self._alone(argument):
            return None
        what = f"stores at most {most:,} of the {count:,} elements of {argument.name} ({argument.target}, "
        blocks = ", ".join("?" if each is None else f"{each:,}" for each in self.grid)
        what += f"{self._shape(argument)}) with a grid of ({blocks}); the others are unset memory"
        return self._found("uncovered", argument.name, stores[-1].line, what)

    def _alone(self, argument: Argument) -> bool:
        """Whether something reads the result, and its first reader gets only values of this launch."""
        flow, name = self.view.flow_of(self.launch), argument.target or ""
        after = flow.forward([name], self.launch.index)
        reader = next((each.launch for each in after.steps if each.launch is not None), None)
        read = bool(after.steps or after.outputs)
        return read and flow.writing_launches(name, reader) == [self.launch.index]

    def _is_fresh(self, argument: Argument) -> bool:
        """Whether the argument is memory that the wrapper allocated and nothing has written."""
        flow = self.view.flow_of(self.launch)
        root = _root(flow.body.buffers, argument, through_pools=True)
        allocated = root is not None and root.kind == "allocated"
        return allocated and not flow.last_writers(argument.target or "", self.launch.index)

    def _most(self, store: Store) -> int:
        """An upper bound of the number of elements that a store writes."""
        plain = Lane({}, self.sizes)
        names = {each.name for part, _ in store.place.parts for each in used(part, store.ranges)}
        spans = {each.name: plain.span(each) for each in store.ranges if each.name in names}
        total, seen = 1, set[str]()
        for test in _conjuncts(store.test):
            own = {name for name in free_positions(test) if name in spans}
            lanes_of = math.prod(len(spans[name]) for name in own)
            if not own or own & seen or not own.issuperset(free_positions(test)) or lanes_of > _MOST_LANES:
                continue
            try:
                places = itertools.product(*(spans[name] for name in own))
                kept = sum(
                    bool(Lane(dict(zip(own, at, strict=True)), self.sizes).value(test)) for at in places
                )
            except _OPEN:
                continue
            total, seen = total * kept, seen | own
        return total * math.prod(len(span) for name, span in spans.items() if name not in seen)

    def _layout(self, argument: Argument) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Sizes and strides of an argument, in elements. None if unknown."""
        shape = argument.view or self.view.wrapper.buffers.get(argument.target or "")
        sizes, strides = (shape.sizes, shape.strides) if shape is not None else (None, None)
        if sizes is None or strides is None:
            return None
        values = [evaluate_whole(each, self.known) for each in (*sizes, *strides)]
        known = tuple(each for each in values if each is not None)
        return (
            (known[: len(sizes)], known[len(sizes) :])
            if len(known) == 2 * len(sizes) == len(values)
            else None
        )

    def _whole(self, argument: Argument) -> tuple[int, int] | None:
        """Return first byte and end of a constant, relative to its start. None for other arguments."""
        own = (each for each in self.view.package.constants if each.name == argument.target)
        found = next(own, None) if argument.view is None else None
        return (0, math.prod(found.shape) * itemsize_of(found.dtype)) if found is not None else None

    def _passed(self, access: Access) -> Argument | None:
        return next((each for each in self.launch.tensors if each.name == access.parameter), None)

    def _overflow(self, access: Access, spans: Spans) -> Finding | None:
        """Find integer arithmetic in an index that overflows its type."""
        for lane in lanes(access, self.sizes) if spans.may_overflow else ():
            if lane.offset(access) is None or (seen := lane.overflow) is None:
                continue
            text, bits, limit = say(seen.term), itemsize_of(seen.term.dtype) * 8, limits(seen.term.dtype)
            turns = abs(seen.exact - seen.wrapped) >> bits
            what = (
                f"computes `{text}` for {access.parameter} in {bits} bits{self._with(lane, text)}: "
                f"it is {seen.exact:,}, beyond {int(limit.high if seen.exact > 0 else limit.low):,}, and "
                f"becomes {seen.wrapped:,}, {f'{turns} * ' if turns != 1 else ''}2**{bits} away"
            )
            return self._found("overflow", access.parameter, access.line, what)
        return None

    def _with(self, lane: Lane, text: str) -> str:
        return _with({**lane.positions, **self.sizes}, text)

    def _beyond(self, access: Access, spans: Spans) -> Finding | None:
        """Find an access outside the memory that the wrapper allocates for the tensor."""
        argument = self._passed(access)
        held = self._allocated(argument) if argument is not None else None
        if argument is not None and held is None and self.kernel.kind == "user_triton":
            held = self._whole(argument)
        if argument is None or held is None or not spans.may_leave(*held):
            return None
        first, end = held
        for lane in lanes(access, self.sizes):
            at = lane.offset(access)
            if at is not None and (at < first or at + access.place.itemsize > end):
                verb, text = "reads" if access.kind == "load" else "stores to", " + ".join(_index(access))
                what = f"{verb} {access.parameter} at {text}{self._with(lane, text)}, byte {at:,} of "
                what += f"{self.view.label(argument.target)}, which has {end:,}"
                return self._found("beyond", access.parameter, access.line, what)
        return None

    def _allocated(self, argument: Argument) -> tuple[int, int] | None:
        """Return first byte and end of the wrapper's own allocation, relative to the argument's pointer."""
        buffers = self.view.wrapper.buffers
        buffer, root = buffers.get(argument.target or ""), _root(buffers, argument)
        if buffer is None or root is None or root.kind != "allocated" or not (root.dtype and buffer.dtype):
            return None
        offset = shifted(buffer.offset, argument.view.offset) if argument.view else buffer.offset or "0"
        skipped = evaluate_whole(offset, self.known)
        layout = [evaluate_whole(each, self.known) for each in (*(root.sizes or ()), *(root.strides or ()))]
        known = [each for each in layout if each is not None]
        if skipped is None or root.sizes is None or len(known) < 2 * len(root.sizes):
            return None
        before = skipped * itemsize_of(buffer.dtype)
        rank = len(root.sizes)
        return -before, reached(known[:rank], known[rank : 2 * rank])[1] * itemsize_of(root.dtype) - before


def _root(buffers: Mapping[str, Buffer], argument: Argument, *, through_pools: bool = False) -> Buffer | None:
    """Return the buffer behind an argument's views. By default, stop at a part of a pool."""
    root = buffers.get(argument.target or "")
    for _ in range(_MOST_BASES):
        if root is not None and (through_pools or root.kind != "pool"):
            root = buffers.get(root.base or "", root)
    return root


def _conjuncts(test: Term | None) -> list[Term]:
    if isinstance(test, Apply) and test.op in ("and", "bitand"):
        return [each for part in test.args for each in _conjuncts(part)]
    return [test] if test is not None else []


def _index(access: Access) -> list[str]:
    return [say(part) for part, _ in access.place.parts]


def _with(values: Mapping[str, int], text: str) -> str:
    """Write the values of the names that occur in a text. Empty if none occurs."""
    named = [name for name in values if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    return f", with {', '.join(f'{name} = {values[name]:,}' for name in named)}" if named else ""


def never_stored(kernel: Kernel, name: str) -> bool:
    """Whether a generated kernel certainly never stores to an output: no statement does or may do so."""
    outputs = name.startswith(("out_ptr", "in_out_ptr"))
    return bool(kernel.source) and outputs and not read_program(kernel).stores_to(name)


# Wrong reductions in a user's Triton kernel. Code that is not understood counts as correct.
# - Masked lanes: `tl.load(p, mask=m, other=0.0)` fills the lanes that `m` masks off with zeros. Zeros do not
#   change a sum, but they change a maximum of negative values. `tl.exp` turns zeros into ones.
# - Sums in 16 bits: the largest float16 is 65504. Long before a sum reaches it, addends are lost to rounding.
#   The result can be finite and wrong.

NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf, "argmin": math.inf}
_NEVER_NEGATIVE = frozenset({"exp", "exp2", "sqrt", "abs", "sigmoid", "square"})
_HALF = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True)
class Padding:
    """A reduction whose result is changed by masked-off lanes, with the 1-based lines of load and reduction.

    These lanes contain `filler` (NaN if unknown), but the reduction needs `needed`.
    """

    load_line: int
    load: str
    filler: float
    line: int
    code: str
    kind: str
    needed: float


def paddings(kernel: Kernel) -> tuple[Padding, ...]:
    """List the reductions whose result is changed by masked-off lanes, in source order."""
    lines, found = kernel.source.split("\n"), []
    for line, fold in _reductions(kernel):
        body = fold.body
        for test, load in _masked_loads(body) if fold.kind in NEUTRAL else ():
            filler, needed = _filler(body, say(test)), NEUTRAL[fold.kind]
            harmless = "max" in fold.kind and filler == 0 and _never_negative(body)
            if filler is not None and filler != needed and not harmless:
                codes = lines[load.line - 1].strip(), lines[line - 1].strip()
                found.append(Padding(load.line, codes[0], filler, line, codes[1], fold.kind, needed))
                break
    return tuple(found)


def narrow_sums(kernel: Kernel) -> list[tuple[int, str]]:
    """List line and code of the sums of a kernel that are kept in 16 bits, in source order."""
    lines = kernel.source.split("\n")
    folds = _reductions(kernel, loops=True)
    sums = (line for line, fold in folds if fold.kind == "sum" and fold.dtype in _HALF)
    return [(line, lines[line - 1].strip()) for line in dict.fromkeys(sums)]


def _reductions(kernel: Kernel, *, loops: bool = False) -> Iterator[tuple[int, Fold]]:
    """Yield reductions over lanes (with `loops`, also over loops), with the line of their first statement."""
    program = read_program(kernel)
    made = [(each.line, each.value) for each in program.definitions]
    made += [(each.line, each.value) for each in program.stores]
    seen: set[Term] = set()
    for line, value in sorted(made, key=lambda each: each[0]):
        for each in parts(value, inside_indices=True):
            if isinstance(each, Fold) and each not in seen:
                seen.add(each)
                if loops or _over_lanes(each.ranges):
                    yield line, each


def _masked_loads(body: Term) -> Iterator[tuple[Term, Element]]:
    """Yield mask and load of each masked load with a constant filler."""
    for each in parts(body):
        match each:
            case Apply(op="where", args=(test, Element() as load, Number())):
                yield test, load


class _MaskedLane(Evaluator):
    """Computes a masked-off lane. Unknown values that all lanes share get numbers: first, first + 3, ..."""

    def __init__(self, mask: str, first: float) -> None:
        super().__init__({}, {})
        self.mask, self.shared = mask, itertools.count(first, 3.0)

    def _value(self, term: Term) -> Scalar:
        match term:
            case Apply(op="where", args=(test, _, other)) if say(test) == self.mask:
                return self.value(other)
            case Fold(body=body, ranges=ranges) if not _over_lanes(ranges):
                return self.value(body)  # same value in each iteration
            case Size() | Fold():
                return next(self.shared)
            case Position() | Element() if not any(map(_is_lane, free_positions(term))):
                return next(self.shared)
            case Position() | Element() | Apply(op="where"):
                raise UnknownValue(say(term))
        return super()._value(term)


def _filler(body: Term, mask: str) -> float | None:
    """The value of a masked-off lane. None if the code is not understood.

    NaN if it depends on unknown numbers, which are assumed to be positive.
    """
    try:
        first, second = (float(_MaskedLane(mask, number).value(body)) for number in (2.0, 5.0))
    except UnknownValue:
        return None
    return first if first == second else math.nan


def _over_lanes(ranges: Sequence[Range]) -> bool:
    return any(_is_lane(each.name) for each in ranges)


def _is_lane(name: str) -> bool:
    return name.startswith("tl.arange")


def _never_negative(term: Term) -> bool:
    match term:
        case Number(value=value):
            return value >= 0
        case Apply(op="mul", args=(first, second)) if first is second:
            return True
        case Apply(op="add" | "mul" | "div", args=args):
            return all(map(_never_negative, args))
        case Apply(op="maximum", args=args):
            return any(map(_never_negative, args))
        case Apply(op="cast", args=(inner,)) | Fold(body=inner):
            return _never_negative(inner)
        case Apply(op="where", args=(_, first, second)):
            return _never_negative(first) and _never_negative(second)
        case Apply(op=op):
            return op in _NEVER_NEGATIVE
    return False
