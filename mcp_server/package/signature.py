"""The compiled signature: inputs, dimensions, symbols, and the pytree with the caller's names.

Sources in the wrapper (torch 2.8-2.15, `_inductor/codegen/cpp_wrapper_cpu.py`): `inputs_info_[i].name`, one
function `check_input_i` with dtype, static sizes, compiled ranges, static strides and device type, the symbol
definitions at the top of `run_impl`, and, from 2.13, `assert_size_stride(arg, {...}, {...}, "input")` with
the whole shape as expressions. The wrapper does not record example inputs, exported guards or Python scalars.

The wrapper's `in_spec_` is `torch.utils._pytree.treespec_dumps` output, protocol 1 (torch 2.8-2.15): `[1,
{"type": ..., "context": "...", "children_spec": [...]}]`. In a leaf, type and context are null.

Misaligned inputs: at the top of `run_impl` a GPU model copies each input whose address lacks the compiled
alignment (`codegen_inputs` in torch/_inductor/codegen/cpp_wrapper_gpu.py, 2.8-2.15). It then works on the
copy, so the caller does not see in-place writes to the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_server.errors import read_json
from mcp_server.package.terms.blocks import split_arguments

_KEYED = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_MAX_DEPTH = 200


class TreeSpecError(ValueError):
    """The text is not a known tree spec."""


def leaf_paths(spec: str) -> tuple[str, ...]:
    """The caller's expression for each leaf of a tree spec: `args[0]['user']`, `kwargs['mask']`.

    The root of an input spec is a tuple (positional, keyword arguments). May raise `TreeSpecError`.
    """
    try:
        protocol, root = read_json(spec)
    except (ValueError, TypeError) as error:
        raise TreeSpecError(f"not a serialized tree spec: {error}") from error
    if protocol != 1:
        raise TreeSpecError(f"tree spec protocol {protocol!r} is not known")
    return tuple(_paths(root, "", 0))


def _paths(node: object, prefix: str, depth: int) -> Iterator[str]:
    if not isinstance(node, dict) or not isinstance(node.get("children_spec"), list) or depth > _MAX_DEPTH:
        raise TreeSpecError("a node of the tree spec has no list of children")
    kind, children = node.get("type"), node["children_spec"]
    if kind is None:
        yield prefix
        return
    names = [f"{prefix}[{key!r}]" for key in _keys(node) or range(len(children))]
    if depth == 0 and kind == "builtins.tuple" and len(children) == 2:
        names = ["args", "kwargs"]
    for name, child in zip(names, children, strict=True):
        yield from _paths(child, name, depth + 1)


def _keys(node: dict[str, Any]) -> list[object]:
    """The keys of a dictionary node, one for each child. Empty for other containers."""
    keys = node.get("context") if node.get("type") in _KEYED else None
    try:
        keys = read_json(keys) if isinstance(keys, str) else keys
    except ValueError:
        return []
    if isinstance(keys, dict):
        keys = keys.get("dict_context")
    return keys if isinstance(keys, list) and len(keys) == len(node["children_spec"]) else []


@dataclass(frozen=True)
class CompiledDim:
    """One dimension: a static `size` in elements, or an `expression` with the compiled range.

    `expression` is None if the wrapper does not name the symbol of a dynamic dimension (torch <= 2.12 names a
    symbol only at its first use). `lower` and `upper` are the inclusive bounds that the compiled code checks,
    or None. This range may be tighter than the user's.
    """

    index: int
    size: int | None = None
    expression: str | None = None
    lower: int | None = None
    upper: int | None = None

    def __str__(self) -> str:
        return str(self.size) if self.size is not None else self.expression or "?"


@dataclass(frozen=True)
class CompiledInput:
    """One flat input tensor. `name` is from the wrapper, `path` the caller's expression (None if unknown).

    `strides` are in elements; a symbolic stride is an expression as text, or None.
    """

    index: int
    name: str
    path: str | None = None
    dtype: str | None = None
    dims: tuple[CompiledDim, ...] = ()
    strides: tuple[int | str | None, ...] = ()
    device_type: str | None = None

    @property
    def label(self) -> str:
        """The display name."""
        return f"input {self.index} ({self.path or self.name})"

    @property
    def code_name(self) -> str:
        """The caller's expression for this input, or its name in the wrapper."""
        return self.path or f"inputs[{self.index}]"

    @property
    def described(self) -> bool:
        """Whether the wrapper's check of this input was found, so that `dims` is complete."""
        return self.dtype is not None

    @property
    def shape(self) -> str:
        return f"[{', '.join(str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class SymbolDefinition:
    """A symbol that the wrapper computes from `what` (size or stride) of dimension `dim` of input `name`.

    If the dimension is an expression such as `2*s0`, `solution` computes the symbol from `<name>_size_<dim>`.
    """

    symbol: str
    name: str
    what: str
    dim: int
    solution: str | None = None


@dataclass(frozen=True)
class Signature:
    """Inputs and symbols of a model.

    `paths` has every leaf of the exported call, tensor or not. None for a package lowered without specs.
    `problems` lists unread parts with their lines, `notes` what the wrapper does not record. `known` is True
    if the wrapper lists as many inputs as it declares; otherwise `inputs` may be incomplete.
    """

    inputs: tuple[CompiledInput, ...] = ()
    paths: tuple[str, ...] | None = None
    symbols: tuple[SymbolDefinition, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    known: bool = True

    def definition(self, name: str, dim: int) -> SymbolDefinition | None:
        """The symbol that is read from the size of input `name` at `dim`, or None."""
        read = (s for s in self.symbols if (s.name, s.what, s.dim) == (name, "size", dim))
        return next(read, None)

    def with_sizes(self, sizes: Sequence[Sequence[str]]) -> Signature:
        """Name dynamic dimensions that the wrapper leaves unnamed.

        `sizes` are the exported program's expressions, by input and dimension. Equal expressions have the
        same symbol in the wrapper.
        """
        if len(sizes) != len(self.inputs):
            return self
        pairs = zip(self.inputs, sizes, strict=True)
        if any(len(item.dims) > len(own) for item, own in pairs):
            return self
        named = {
            sizes[item.index][dim.index]: dim.expression
            for item in self.inputs
            for dim in item.dims
            if dim.size is None and dim.expression is not None
        }
        inputs = [
            replace(item, dims=tuple(_named(dim, named, sizes[item.index][dim.index]) for dim in item.dims))
            for item in self.inputs
        ]
        return replace(self, inputs=tuple(inputs))


# Digits are limited: a dimension number of 10**9 would allocate a huge tuple, and `int` rejects 5,000 digits.
_BASE = re.compile(r":\s*AOTInductorModelBase\(\s*(\d{1,6}),")
_NAME = re.compile(r'inputs_info_\[(?P<index>\d{1,6})\]\.name = "(?P<name>(?:[^"\\]|\\.)*)"')
_SPEC = re.compile(r'\b(?P<side>in|out)_spec_ =\s*(?P<text>(?:R"\(.*?\)"\s*)+);', re.S)
_RAW_STRING = re.compile(r'R"\((.*?)\)"', re.S)
_CHECK = re.compile(r"static void check_input_(\d{1,6})\(")
_EXPECTED_DTYPE = re.compile(r"_expected_dtype = aoti_torch_dtype_(\w+)\(\)")
_STATIC_SIZE = re.compile(r"if \((\d{1,19})L? != \w+_size\[(\d{1,3})\]\)")
_BOUND = re.compile(r"if \(\w+_size\[(\d{1,3})\] ([<>]) (-?\d{1,19})L*\)")
_STATIC_STRIDE = re.compile(r"if \((-?\d{1,19})L? != \w+_stride\[(\d{1,3})\]\)")
_DEVICE = re.compile(r'_expected_device_type << "\d*\((\w+)\)')
_SYMBOL = re.compile(r"\bint64_t (?P<symbol>\w+) = (?P<input>\w+)_(?P<what>size|stride)\[(?P<dim>\d{1,3})\];")
_SOLVED = re.compile(
    r"\bint64_t (?P<symbol>\w+) = "
    r"(?P<solution>.*\b(?P<input>\w+)_(?P<what>size|stride)_(?P<dim>\d{1,3})\b.*);"
)
_SIZE_ASSERT = re.compile(
    r'assert_size_stride\((?P<input>\w+), \{(?P<sizes>[^}]*)\}, \{(?P<strides>[^}]*)\}[^;]*"input"'
)
_ARGUMENT = re.compile(r"arg(\d{1,9})_1")
_INTEGER = re.compile(r"-?\d{1,19}")
_RUN = "::run_impl"

UNKNOWN = "the package does not say which inputs it takes: its wrapper.cpp is not there or not whole"
UNBOUNDED = 2**63 - 1
"""The generator clips upper bounds to this value, so it means unbounded (cpp_wrapper_cpu.py, torch 2.13)."""


def read_signature(wrapper: str) -> Signature:
    """Read the compiled signature from a wrapper's text. Never raises: `problems` lists unread parts."""
    lines = wrapper.count("\n") + 1
    problems = []
    if "__check_inputs_outputs(" not in wrapper:
        problems.append(f"the input checks end at line {lines}: sizes and dtypes may be missing")
    at = wrapper.rfind(_RUN)  # faster than a regex: a wrapper may have 30 MB
    if at < 0 or not wrapper.startswith("} // ", wrapper.rfind("\n", 0, at) + 1):
        problems.append(f"run_impl ends at line {lines}: symbols and relations may be missing")
    # From the base constructor call to the end of the model's constructor.
    start = max(wrapper.find("AOTInductorModelBase("), 0) or wrapper.find("inputs_info_[")
    line = wrapper.rfind("\n", 0, max(start, 0)) + 1
    head = _between(wrapper, line, "const_run_impl(") if start >= 0 else ""
    base = _BASE.search(head)
    names = {int(m["index"]): m["name"] for m in _NAME.finditer(head)}
    known = base is not None and int(base[1]) == len(names)
    if base is None:
        problems.append("no AOTInductorModel constructor: the wrapper is cut or not AOTInductor's")
    elif not known:
        problems.append(f"the constructor declares {base[1]} inputs, and names {len(names)}")
    symbols = tuple(_symbols(wrapper))
    asserts, checks, inputs = _asserts(wrapper), _checks(wrapper), []
    for index, name in sorted(names.items()):
        if index not in checks:
            what = f"input {index} ({name}) has no check_input_{index}: its shape and dtype are not known"
            problems.append(what)
        elif not _EXPECTED_DTYPE.search(checks[index]):
            problems.append(f"check_input_{index} names no dtype")
        inputs.append(_input(index, name, checks.get(index, ""), symbols, asserts.get(name)))
    notes = [] if known else [UNKNOWN]
    paths = _input_paths(head, problems)
    return Signature(
        inputs=tuple(_with_paths(inputs, paths, notes)),
        paths=paths,
        symbols=symbols,
        problems=tuple(problems),
        notes=tuple(notes),
        known=known,
    )


def _asserts(wrapper: str) -> dict[str, Shape]:
    """What the first assert of each input requires (torch >= 2.13)."""
    asserts: dict[str, Shape] = {}
    for match in _SIZE_ASSERT.finditer(wrapper, max(wrapper.find(f"{_RUN}("), 0)):
        if match["input"] not in asserts:
            asserts[match["input"]] = _numbers(match["sizes"]), _numbers(match["strides"])
    return asserts


def _checks(wrapper: str) -> dict[int, str]:
    """The text of the check of each input."""
    start = wrapper.find("static void check_input_")
    region = _between(wrapper, start, "__check_inputs_outputs(") if start >= 0 else ""
    _, *parts = _CHECK.split(region)
    return dict(zip(map(int, parts[::2]), parts[1::2], strict=True))


def _input_paths(head: str, problems: list[str]) -> tuple[str, ...] | None:
    """Return the paths of the inputs' leaves. Add to `problems` what cannot be read of the specs."""
    paths = None
    for match in _SPEC.finditer(head):
        text = "".join(_RAW_STRING.findall(match["text"]))
        try:
            found = leaf_paths(text) if text else None
        except TreeSpecError as error:
            problems.append(f"{match['side']}_spec_ cannot be read: {error}")
        else:
            paths = found if match["side"] == "in" else paths
    return paths


def _named(dim: CompiledDim, named: Mapping[str, str], size: str) -> CompiledDim:
    unknown = dim.size is None and dim.expression is None
    return replace(dim, expression=named.get(size)) if unknown else dim


def _between(text: str, start: int, end: str) -> str:
    """The text between an offset and the next `end`, or the end of the text."""
    at = text.find(end, start)
    return text[start : at if at > 0 else None]


def _input(
    index: int, name: str, check: str, symbols: tuple[SymbolDefinition, ...], asserted: Shape | None
) -> CompiledInput:
    """Build an input from its `check_input_N`, symbols, and `assert_size_stride`."""
    dtype, device = _EXPECTED_DTYPE.search(check), _DEVICE.search(check)
    sizes = {int(dim): int(size) for size, dim in _STATIC_SIZE.findall(check)}
    strides: dict[int, int | str] = {int(dim): int(value) for value, dim in _STATIC_STRIDE.findall(check)}
    bounds = {(int(dim), sign): int(bound) for dim, sign, bound in _BOUND.findall(check)}
    bounds = {key: bound for key, bound in bounds.items() if key[1] == "<" or bound < UNBOUNDED}
    names = {s.dim: s.symbol for s in symbols if s.name == name and s.what == "size" and not s.solution}
    rank = 1 + max((*sizes, *strides, *names, *(dim for dim, _ in bounds)), default=-1)
    if asserted is not None:
        rank = len(asserted[0])
        sizes |= {dim: size for dim, size in enumerate(asserted[0]) if isinstance(size, int)}
        names |= {dim: size for dim, size in enumerate(asserted[0]) if isinstance(size, str)}
        strides = dict(enumerate(asserted[1]))
    ends = [(bounds.get((dim, "<")), bounds.get((dim, ">"))) for dim in range(rank)]
    return CompiledInput(
        index,
        name,
        dtype=dtype[1] if dtype else None,
        dims=tuple(CompiledDim(i, sizes.get(i), names.get(i), *ends[i]) for i in range(rank)),
        strides=tuple(strides.get(i) for i in range(rank)),
        device_type=device[1] if device else None,
    )


def _symbols(text: str) -> Iterator[SymbolDefinition]:
    """Yield the symbols that the top of `run_impl` defines."""
    start = text.find(f"{_RUN}(")
    end = text.find("inputs.clear();", start)
    prologue = text[start : end if end > 0 else start + 1_000_000] if start >= 0 else ""
    for line in prologue.splitlines():
        if match := _SYMBOL.search(line):
            symbol, what, dim = match["symbol"], match["what"], match["dim"]
            if not symbol.endswith(f"_{what}_{dim}"):
                yield SymbolDefinition(symbol, match["input"], what, int(dim))
        elif match := _SOLVED.search(line):
            at, solution = int(match["dim"]), match["solution"]
            yield SymbolDefinition(match["symbol"], match["input"], match["what"], at, solution)


Shape = tuple[list[int | str], list[int | str]]
"""Sizes and strides: numbers, or expressions over the symbols."""


def _numbers(items: str) -> list[int | str]:
    """Parse the elements of a C++ list: numbers, or expressions without integer suffixes."""
    texts = [re.sub(r"(?<=\d)L+\b", "", items[a:b]) for a, b in split_arguments(items, 0, len(items))]
    return [int(text) if _INTEGER.fullmatch(text) else text for text in texts]


def _with_paths(
    inputs: list[CompiledInput], paths: tuple[str, ...] | None, notes: list[str]
) -> list[CompiledInput]:
    """Set the caller's path of each input. Add a note on non-tensor leaves, which are fixed in the code."""
    if paths is None:
        return inputs
    leaves = _leaves(inputs, len(paths))
    if leaves is None:
        notes.append(
            f"the exported call had {len(paths)} leaves, of which {len(inputs)} are tensors: the others are "
            "fixed in the code, so that the caller's names of the inputs are not known"
        )
        return inputs
    fixed = [path for leaf, path in enumerate(paths) if leaf not in leaves]
    if fixed:
        notes.append(f"{', '.join(fixed)}: fixed in the code as at export; what the caller passes is ignored")
    return [replace(item, path=paths[leaf]) for item, leaf in zip(inputs, leaves, strict=True)]


def _leaves(inputs: list[CompiledInput], count: int) -> list[int] | None:
    """The leaf index of each input among `count` leaves. None if ambiguous.

    N in `argN_1` counts the parameters, then all leaves, tensors or not (seen in torch 2.11 and 2.13). If the
    first and last leaf are tensors, N identifies the leaf of each input.
    """
    if len(inputs) == count:
        return list(range(count))
    matches = [_ARGUMENT.fullmatch(item.name) for item in inputs]
    numbers = [int(match[1]) for match in matches if match]
    if not numbers or len(numbers) < len(inputs) or numbers[-1] - numbers[0] != count - 1:
        return None
    leaves = [number - numbers[0] for number in numbers]
    return leaves if leaves == sorted(set(leaves)) else None


_COPY = re.compile(
    r"if \(\(reinterpret_cast<std::uintptr_t>\((?P<name>\w+)\.data_ptr\(\)\)"
    r" & \((?P<bytes>\d{1,4}) ?- ?1\)\) != 0\) \{"
    r"[^{}]*aoti_torch_clone_preserve_strides\((?P=name), &(?P<copy>\w+)\);"
    r"\s*(?P=name) = std::move\(RAIIAtenTensorHandle\((?P=copy)\)\);"
)


def copied_when_misaligned(wrapper: str) -> dict[str, int]:
    """Map each input that is copied if misaligned to its required alignment in bytes."""
    return {found["name"]: int(found["bytes"]) for found in _COPY.finditer(wrapper)}
