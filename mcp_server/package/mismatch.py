"""Compares a call with the compiled signature: argument tree, inputs, dynamic dimensions and ranges.

The package's own check (`AOTI_RUNTIME_CHECK_INPUTS`) ignores rank, relations between dimensions, and
structure (torch 2.8-2.15).

Tree: `AOTICompiledModel.__call__` flattens its arguments without comparing the tree (torch 2.8-2.15), so a
dictionary with another key order swaps values silently.

Ranges: the package has the range that code generation derived. It is tighter than the user's in two known
cases, in which a size outside it is only suspicious:

- export assumes every dynamic size to be at least 2, also for `Dim(min=1)` (seen in torch 2.11 and 2.13);
- CPU code generation guards on products with 4096 (`16*s77 > 4096`, `_inductor/codegen/cpp.py:2273` of
  2.13), which lowers the upper bound to 4096 // k (seen in torch 2.11, 2.13 and 2.15, not in 2.8).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations
from math import prod
from typing import Any, Literal

from mcp_server.model import Category, Fix, Record
from mcp_server.package.launches import whole_number
from mcp_server.package.signature import CompiledDim, CompiledInput, Signature, SymbolDefinition
from mcp_server.package.symbols import names_in
from mcp_server.package.terms.sizes import evaluate, evaluate_whole
from mcp_server.package.terms.term import itemsize_of
from mcp_server.plurals import counted

Severity = Literal["fatal", "suspicious"]
Aspect = Literal[
    "count",
    "structure",
    "order",
    "device",
    "device_index",
    "dtype",
    "rank",
    "size",
    "range",
    "relation",
    "stride",
]
_CATEGORIES: dict[Aspect, Category] = {
    "device": "device_mismatch",
    "device_index": "device_mismatch",
    "range": "shape_out_of_range",
    "relation": "shape_out_of_range",
}
_MAX_SWAPS = 64
_KEYWORD = "kwargs["
DOUBTS = {
    True: "; export raises every lower bound to 2, so a smaller size may work",
    False: "; on the CPU the compiler may have lowered this bound itself, so a larger size may work",
}
"""The doubt about a bound, by whether a size is below it."""


def without_doubt(sentence: str) -> str:
    """A sentence about a bound without the text of `DOUBTS`."""
    return reduce(lambda text, doubt: text.replace(doubt, ""), DOUBTS.values(), sentence)


SPECIALIZED_BELOW = 2
CPU_CHUNK = 4096


@dataclass(frozen=True)
class GivenTensor:
    """An input tensor as the caller passes it.

    `shape` and `stride` are in elements; a `stride` of None means contiguous. `device` is torch's text
    (`cuda:0`).
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    device: str = "cpu"

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    @property
    def device_index(self) -> int | None:
        return whole_number(self.device.partition(":")[2])

    @property
    def strides(self) -> tuple[int, ...]:
        return contiguous_strides(self.shape) if self.stride is None else self.stride


class Mismatch(Record):
    """One difference. `fatal`: the compiled code may read wrong memory. `suspicious`: possibly a false alarm
    of the compiled range or of the run-time check; `sentence` says why.
    """

    category: Category
    aspect: Aspect
    severity: Severity = "fatal"
    sentence: str
    expected: str
    got: str
    fix: Fix
    input_index: int | None = None
    dim: int | None = None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as of `torch.empty` (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _mismatch(aspect: Aspect, sentence: str, expected: str, got: str, fix: Fix, **more: Any) -> Mismatch:
    category = _CATEGORIES.get(aspect, "input_mismatch")
    found = {"sentence": sentence, "expected": expected, "got": got, "fix": fix, **more}
    return Mismatch(category=category, aspect=aspect, **found)


def compare_structure(signature: Signature, passed: Sequence[str]) -> list[Mismatch]:
    """List differences between the paths of the caller's and the exported leaves, tensors or not.

    Only calls with dictionaries are compared: a flat list of tensors has no structure. The order of keyword
    arguments is ignored, since the loader sorts them.
    """
    expected = signature.paths
    if expected is None or not any("['" in path for path in passed):
        return []
    named = _as_exported(passed, expected)
    actual = tuple(named[i] for i in calling_order(signature, passed))
    if actual == expected:
        return []
    first: int | None = None
    if set(actual) == set(expected):
        first = next(i for i, (want, got) in enumerate(zip(expected, actual, strict=True)) if want != got)
        sentence = (
            "the dictionary's keys are in a different order from the export: "
            f"{actual[first]} is in the place of {expected[first]}; "
            "AOTInductor passes tensors by position, so the values are silently swapped"
        )
        action = "build the dictionary in the exported order"
        fix = Fix(text=action, before=", ".join(actual), after=", ".join(expected))
    else:
        missing = ", ".join(path for path in expected if path not in actual) or "none"
        extra = ", ".join(path for path in actual if path not in expected) or "none"
        sentence = (
            f"the arguments are not those of the export: missing {missing}, unknown {extra}; "
            "AOTInductor compares neither keys nor structure"
        )
        fix = Fix(text="pass the arguments with the names and the nesting of the exported call")
    return [_mismatch("structure", sentence, ", ".join(expected), ", ".join(actual), fix, input_index=first)]


def calling_order(signature: Signature, passed: Sequence[str]) -> tuple[int, ...]:
    """Indices of the caller's leaves in the order in which the loader passes them."""
    expected = signature.paths or ()
    paths = _as_exported(passed, expected)
    # Positional arguments in order, then keyword arguments in exported order.
    names = [_top(path) for path in expected if path.startswith(_KEYWORD)]
    rank = {name: index for index, name in enumerate(dict.fromkeys(names))}
    places = range(len(paths))
    positional = [i for i in places if not paths[i].startswith(_KEYWORD)]
    keywords = [i for i in places if paths[i].startswith(_KEYWORD)]
    return (*positional, *sorted(keywords, key=lambda i: rank.get(_top(paths[i]), len(rank))))


def _top(path: str) -> str:
    return path[: path.find("]") + 1]


def _as_exported(passed: Sequence[str], expected: Sequence[str]) -> tuple[str, ...]:
    """Read a single dictionary argument as keyword arguments if its keys are the exported keywords."""
    keywords = tuple(path.replace("args[0][", _KEYWORD, 1) for path in passed)
    return keywords if set(keywords) == set(expected) else tuple(passed)


def compare_inputs(
    signature: Signature, tensors: Sequence[GivenTensor], *, device_index: int | None = None
) -> list[Mismatch]:
    """List all differences: exchanged inputs, fatal ones, others. `tensors` are the inputs in calling order.

    `device_index` is the device on which the package is loaded, if the caller chose one. An unknown signature
    gives no differences.
    """
    if not signature.known:
        return []
    wanted, got = len(signature.inputs), len(tensors)
    if got != wanted:
        names = taken(signature.inputs)
        sentence = f"the package was compiled for {counted(wanted, 'tensor')}, and the call passed {got}"
        action = f"pass {names}, in this order; export fixed all other arguments"
        return [_mismatch("count", sentence, f"{wanted}: {names}", str(got), Fix(text=action))]
    alone = _differences(signature, tensors)
    swapped = _swapped(signature, tensors, alone)
    found = [*swapped, *alone, *_device_indices(signature, tensors, device_index)]
    return sorted(found, key=lambda m: (m.severity != "fatal", m.aspect != "order"))


def taken(inputs: Sequence[CompiledInput]) -> str:
    """Describe the first 8 tensors that a package takes: `args[0] int64[32, 6], args[1] float32[s0]`."""
    named = (f"{each.path or each.name} {each.dtype}{each.shape}" for each in inputs[:8])
    return ", ".join(named) + (", …" if len(inputs) > 8 else "")


def _swapped(
    signature: Signature, tensors: Sequence[GivenTensor], found: Sequence[Mismatch]
) -> Iterator[Mismatch]:
    """Yield the first pair of inputs whose exchange removes every fatal difference."""
    bad = sorted({m.input_index for m in found if m.severity == "fatal" and m.input_index is not None})
    for first, second in list(combinations(bad, 2))[:_MAX_SWAPS]:
        exchanged = list(tensors)
        exchanged[first], exchanged[second] = tensors[second], tensors[first]
        if any(m.severity == "fatal" for m in _differences(signature, exchanged)):
            continue
        one, other = signature.inputs[first], signature.inputs[second]
        a, b = one.code_name, other.code_name
        sentence = f"{one.label} and {other.label} are exchanged: in the other order, both fit"
        fix = Fix(text="exchange the two inputs", before=f"model({b}, {a})", after=f"model({a}, {b})")
        yield _mismatch("order", sentence, f"{a}, {b}", f"{b}, {a}", fix, input_index=one.index)
        return


def _differences(signature: Signature, tensors: Sequence[GivenTensor]) -> list[Mismatch]:
    values = symbol_values(signature, tensors)
    pairs = list(zip(signature.inputs, tensors, strict=True))
    alone = [m for item, tensor in pairs for m in _one_input(signature, item, tensor, values)]
    unrankable = {m.input_index for m in alone if m.aspect == "rank"}
    ranked = [(item, tensor) for item, tensor in pairs if item.index not in unrankable]
    return alone + [m for item, tensor in ranked for m in _relations(signature, item, tensor, values)]


def _one_input(
    signature: Signature, item: CompiledInput, tensor: GivenTensor, values: dict[str, int]
) -> Iterator[Mismatch]:
    yield from _device_and_dtype(item, tensor)
    if not item.described:
        return
    if len(tensor.shape) != len(item.dims):
        yield _rank(item, tensor)
        return
    order = order_of(item, tensor.shape)
    if order:
        given, compiled = list(tensor.shape), item.shape
        sentence = f"{item.label} has shape {given}, but was compiled for {compiled}: its dimensions are in "
        fix = Fix(text=f"put the dimensions of {item.code_name} in the compiled order", before=item.code_name)
        fix = fix.model_copy(update={"after": f"{item.code_name}.permute({order}).contiguous()"})
        yield _mismatch("size", f"{sentence}another order", compiled, str(given), fix, input_index=item.index)
        return
    sizes = list(_sizes(signature, item, tensor))
    yield from sizes
    if not any(m.aspect == "size" for m in sizes):
        # Compute strides from this input's own sizes. `_relations` reports if other inputs contradict them.
        pairs = zip(item.dims, tensor.shape, strict=True)
        own = {d.expression: size for d, size in pairs if d.expression and d.expression.isidentifier()}
        yield from _strides(item, tensor, {**values, **own})


def _device_and_dtype(item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    name = item.code_name
    if item.device_type is not None and tensor.device_type != item.device_type:
        sentence = f"{item.label} is on {tensor.device}, but the package was compiled for {item.device_type}"
        fix = _moved(name, item.device_type, tensor)
        yield _mismatch("device", sentence, item.device_type, tensor.device, fix, input_index=item.index)
    dtype = tensor.dtype.removeprefix("torch.")
    if item.dtype is not None and dtype != item.dtype:
        sentence = (
            f"{item.label} is {dtype}, but the package was compiled for {item.dtype}: its kernels would read "
            f"{_misread(dtype, item.dtype)}"
        )
        fix = Fix(
            text=f"convert {name} to {item.dtype} before the call",
            before=name,
            after=f"{name}.to(torch.{item.dtype})",
        )
        yield _mismatch("dtype", sentence, item.dtype, dtype, fix, input_index=item.index)


def _rank(item: CompiledInput, tensor: GivenTensor) -> Mismatch:
    wanted, got = len(item.dims), len(tensor.shape)
    sentence = f"{item.label} has rank {got} ({list(tensor.shape)}), but was compiled with rank {wanted} "
    return _mismatch(
        "rank",
        f"{sentence}({item.shape}); no run-time check of AOTInductor sees this",
        f"{wanted}: {item.shape}",
        f"{got}: {list(tensor.shape)}",
        Fix(text=_reshaped(item, tensor)),
        input_index=item.index,
    )


# Permutations between common layouts of images, sequences and matrices: channels first or last, transposed.
ORDERS = ((0, 3, 1, 2), (0, 2, 3, 1), (2, 0, 1), (1, 2, 0), (0, 2, 1), (1, 0, 2), (1, 0))


def order_of(item: CompiledInput, shape: Sequence[int]) -> tuple[int, ...]:
    """A permutation of `shape` that fits the input. Empty if no fixed size is wrong, or none fits."""

    def fit(sizes: Sequence[int]) -> bool:
        pairs = zip(item.dims, sizes, strict=True)
        return all(
            got == dim.size if dim.size is not None else (dim.lower or 0) <= got <= (dim.upper or got)
            for dim, got in pairs
        )

    fixed = any(dim.size not in (None, got) for dim, got in zip(item.dims, shape, strict=True))
    orders = (order for order in ORDERS if fixed and len(order) == len(shape))
    return next((order for order in orders if fit([shape[place] for place in order])), ())


def _misread(given: str, compiled: str) -> str:
    """`8-byte floats as 4-byte integers`, or the dtypes if both are of one kind and size."""
    found, meant = (
        f"{itemsize_of(dtype)}-byte "
        + ("floats" if "float" in dtype else "integers" if "int" in dtype else "values")
        for dtype in (given, compiled)
    )
    return f"{found} as {meant}" if found != meant else f"{given} values as {compiled}"


def _moved(name: str, device: str, tensor: GivenTensor) -> Fix:
    """The fix for a wrong device. A meta tensor has no data to move."""
    if tensor.device_type == "meta":
        return Fix(
            text=f"create {name} on {device} with its values: a meta tensor has no values to move",
            before=name,
            after=f"torch.empty_like({name}, device={device!r})  # and fill it",
        )
    action = f"move {name} to {device} before the call"
    if not device.startswith(tensor.device_type):
        there = f"on {tensor.device_type}"
        again = f"export and compile it again with the model and the example inputs {there}"
        action += f"; or, to run the model {there}, {again}"
    return Fix(text=action, before=name, after=f"{name}.to({device!r})")


def _device_indices(
    signature: Signature, tensors: Sequence[GivenTensor], loaded_on: int | None
) -> Iterator[Mismatch]:
    """Yield inputs on another GPU than the model. Neither torch nor the package checks this."""
    devices = ", ".join(sorted({tensor.device for tensor in tensors if tensor.device_index is not None}))
    if loaded_on is None and "," in devices:
        yield _mismatch(
            "device_index",
            f"inputs are on several devices ({devices}); the checks compare only the type",
            "one device",
            devices,
            Fix(text="move every input to the device on which the package is loaded (its `device_index`)"),
            severity="suspicious",
        )
    for item, tensor in zip(signature.inputs, tensors, strict=True):
        if loaded_on is None or tensor.device_index in (None, loaded_on):
            continue
        home = f"{tensor.device_type}:{loaded_on}"
        yield _mismatch(
            "device_index",
            f"{item.label} is on {tensor.device} and the package was loaded on {home}; the checks "
            "compare the type only",
            home,
            tensor.device,
            _moved(item.code_name, home, tensor),
            severity="suspicious",
            input_index=item.index,
        )


def _reshaped(item: CompiledInput, tensor: GivenTensor) -> str:
    """Describe the fix for a wrong rank: a reshape if the number of elements permits it."""
    known, elements = prod(dim.size for dim in item.dims if dim.size is not None), prod(tensor.shape)
    fits = elements % known == 0 if any(dim.size is None for dim in item.dims) else elements == known
    if known and fits:
        return f"reshape it to {item.shape} (unsqueeze or squeeze) before the call"
    return f"pass a tensor of shape {item.shape}: {elements} elements cannot have it; it may be another input"


def _sizes(signature: Signature, item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    """Yield static dimensions of another size, then dynamic ones outside their compiled range."""
    pairs = list(zip(item.dims, tensor.shape, strict=True))
    for dim, got in pairs:
        if dim.size is not None and dim.size != got:
            fix = Fix(
                text=f"pass {dim.size} there, or export again with dimension {dim.index} dynamic: in "
                f"dynamic_shapes, add it to the entry of {item.path or item.name}",
                after=f"{dim.index}: torch.export.Dim('n', max={max(got, dim.size)})",
            )
            sentence = f"dimension {dim.index} of {item.label} is {got}, but was compiled as {dim.size}"
            yield _mismatch(
                "size", sentence, str(dim.size), str(got), fix, input_index=item.index, dim=dim.index
            )
    for dim, got in pairs:
        below = dim.lower is not None and got < dim.lower
        if dim.size is None and (below or (dim.upper is not None and got > dim.upper)):
            yield _out_of_range(signature, item, dim, got, below)


def _may_be_assumed(dim: CompiledDim, definition: SymbolDefinition | None) -> bool:
    """Whether the lower bound may come from export's assumption that every symbol is at least 2."""
    if dim.expression is not None:
        symbols = dict.fromkeys(names_in(dim.expression), SPECIALIZED_BELOW)
        return evaluate(dim.expression, symbols) == dim.lower
    if definition is not None and definition.solution is not None and dim.lower is not None:
        lowest = {f"{definition.name}_size_{dim.index}": dim.lower}
        return evaluate(definition.solution, lowest) == SPECIALIZED_BELOW
    return dim.lower == SPECIALIZED_BELOW


WIDER = "or export again with a range that includes {got}, if the model allows this size"
BRANCH = (
    ". If you did not set this bound with Dim, it comes from the compiler or from a branch of the model on it"
)


def _within(dim: CompiledDim, below: bool) -> str:
    """Describe how to bring a size into the range."""
    if below:
        apart = "otherwise handle smaller inputs separately"
        padded = f"pad dimension {dim.index} to {dim.lower}"
        return f"{padded} if the result does not depend on the padding, {apart}"
    parts = "the batch" if dim.index == 0 else f"dimension {dim.index}"
    sizes = f"{dim.lower} to {dim.upper}" if (dim.lower or 0) > 1 else f"at most {dim.upper}"
    return f"split {parts} into parts of {sizes} if no row of the result depends on other rows"


def _out_of_range(
    signature: Signature, item: CompiledInput, dim: CompiledDim, got: int, below: bool
) -> Mismatch:
    limits = f"{dim.lower or 0}..{'any' if dim.upper is None else dim.upper}"
    upper = dim.upper or 0
    # The CPU guard leaves an upper bound of 4096 // k, for an integer k.
    guarded = item.device_type == "cpu" and upper > 0 and CPU_CHUNK // (CPU_CHUNK // upper or 1) == upper
    soft = _may_be_assumed(dim, signature.definition(item.name, dim.index)) if below else guarded
    doubt = DOUBTS[below] if soft else ""
    if below and guarded:
        doubt += f"; on the CPU the compiler may have lowered the upper bound {upper} itself"
    fix = Fix(text=f"{_within(dim, below)}; {WIDER.format(got=got)}{BRANCH}")
    of = f" ({dim.expression})" if dim.expression else ""
    where = f"dimension {dim.index} of {item.label}"
    sentence = f"{where} is {got}, outside the compiled range {limits}{of}{doubt}"
    severity: Severity = "suspicious" if soft else "fatal"
    return _mismatch(
        "range", sentence, limits, str(got), fix, severity=severity, input_index=item.index, dim=dim.index
    )


def _strides(item: CompiledInput, tensor: GivenTensor, values: dict[str, int]) -> Iterator[Mismatch]:
    expected = [evaluate_whole(each, values) if isinstance(each, str) else each for each in item.strides]
    pairs = enumerate(zip(expected, tensor.strides, strict=False))
    wrong = [dim for dim, (want, got) in pairs if want is not None and want != got]
    if not wrong:
        return
    harmless = prod(tensor.shape) <= 1 or all(tensor.shape[dim] == 1 for dim in wrong)
    effect = (
        "only dimensions of size 1 differ: harmless to kernels, but AOTI_RUNTIME_CHECK_INPUTS rejects it"
        if harmless
        else "kernels step through memory with the compiled strides"
    )
    name, strides = item.code_name, tuple_text(expected)
    copy = f"torch.empty_strided({list(tensor.shape)}, {strides}, dtype={name}.dtype, device={name}.device)"
    fix = Fix(text="copy it into a tensor of those strides", before=name, after=f"{copy}.copy_({name})")
    if all(w in (None, h) for w, h in zip(expected, contiguous_strides(tensor.shape), strict=True)):
        fix = Fix(text="make it contiguous before the call", before=name, after=f"{name}.contiguous()")
    yield _mismatch(
        "stride",
        f"{item.label} has strides {tensor.strides}, but was compiled for {strides}: {effect}",
        strides,
        str(tensor.strides),
        fix,
        severity="suspicious" if harmless else "fatal",
        input_index=item.index,
        dim=wrong[0],
    )


def tuple_text(expected: Sequence[int | str | None]) -> str:
    """Format a tuple as Python does, with `?` for unknown strides."""
    inner = ", ".join("?" if stride is None else str(stride) for stride in expected)
    return f"({inner},)" if len(expected) == 1 else f"({inner})"


def symbol_values(signature: Signature, passed: Sequence[GivenTensor]) -> dict[str, int]:
    """The value of each shape symbol for these inputs, as `run_impl` computes it."""
    by_name = {item.name: tensor for item, tensor in zip(signature.inputs, passed, strict=False)}
    values: dict[str, int] = {}
    for definition in signature.symbols:
        value = _defined(definition, by_name.get(definition.name))
        if value is not None and value.denominator == 1:
            values.setdefault(definition.symbol, int(value))
    return values


def _defined(definition: SymbolDefinition, tensor: GivenTensor | None) -> Fraction | None:
    if tensor is None or definition.dim >= len(tensor.shape):
        return None
    sizes = tensor.shape if definition.what == "size" else tensor.strides
    return _of_size(definition, sizes[definition.dim])


def _of_size(definition: SymbolDefinition, value: int) -> Fraction | None:
    """The symbol's value for this size or stride of its dimension."""
    if definition.solution is None:
        return Fraction(value)
    return evaluate(definition.solution, {f"{definition.name}_{definition.what}_{definition.dim}": value})


def _whole_sizes(definition: SymbolDefinition, found: Fraction) -> str:
    """Describe the sizes for which a symbol is an integer. In this call it is the fraction `found`."""
    first, second = (_of_size(definition, size) for size in (0, 1))
    if first is None or second is None:
        return f"a multiple of {found.denominator}"
    step = second - first
    period = step.denominator
    more = next((size for size in range(period) if (first + size * step).denominator == 1), 0)
    return f"{more} more than a multiple of {period}" if more else f"a multiple of {period}"


def _relations(
    signature: Signature, item: CompiledInput, tensor: GivenTensor, values: dict[str, int]
) -> Iterator[Mismatch]:
    """Yield dimensions whose size contradicts their expression (`s0`, `2*s0`) or makes a symbol fractional.

    Wrappers of torch 2.13 and later record all such dimensions; older ones only the first for each symbol.
    """
    # An odd size makes the symbol of `n = size/2` a fraction.
    for definition in signature.symbols:
        if definition.name != item.name or definition.solution is None or definition.what != "size":
            continue
        value = _defined(definition, tensor)
        if value is None or value.denominator == 1:
            continue
        dim, wanted = definition.dim, _whole_sizes(definition, value)
        got = str(tensor.shape[dim])
        sentence = (
            f"{item.label}: dimension {dim} is {got}, but the compiled code needs {wanted} "
            f"(it computes {definition.symbol} = {definition.solution}, which it cuts to an integer)"
        )
        fix = Fix(text=f"pad or cut dimension {dim} to {wanted}")
        yield _mismatch("relation", sentence, wanted, got, fix, input_index=item.index, dim=dim)
    labels = {each.name: each.label for each in signature.inputs}
    for each, size in zip(item.dims, tensor.shape, strict=False):
        due = evaluate(each.expression, values) if each.expression and each.size is None else None
        if due is None or due == size:
            continue
        names = names_in(each.expression or "")
        known = [s for s in signature.symbols if s.symbol in names and s.name in labels]
        origins = [f"{s.symbol} is read from dimension {s.dim} of {labels[s.name]}" for s in known]
        origin = f" ({'; '.join(origins)})" if origins else ""
        wanted = f"{each} = {int(due)}"
        sentence = f"{item.label}: dimension {each.index} is {size} but must be {wanted}{origin}"
        fix = Fix(text=f"pass {int(due)} at dimension {each.index} of {item.label}{origin}")
        yield _mismatch("relation", sentence, wanted, str(size), fix, input_index=item.index, dim=each.index)
