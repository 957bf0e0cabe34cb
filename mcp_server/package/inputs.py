"""Reads the compiled input signature from the text of a wrapper.

Sources in the wrapper (torch 2.8-2.15, `_inductor/codegen/cpp_wrapper_cpu.py`): `inputs_info_[i].name`, one
function `check_input_i` with dtype, static sizes, compiled ranges, static strides and device type, the
symbol definitions at the top of `run_impl`, and, from 2.13, `assert_size_stride(arg, {...}, {...}, "input")`
with the whole shape as expressions. Example inputs, exported guards and Python scalars are not recorded.

Misaligned inputs: at the top of `run_impl` a GPU model copies inputs whose address is not aligned as compiled
(`codegen_inputs` in torch/_inductor/codegen/cpp_wrapper_gpu.py, 2.8-2.15). It then works on the copy, so the
caller does not see in-place writes to such an input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from mcp_server.package.signature import (
    CompiledDim,
    CompiledInput,
    Signature,
    SymbolDefinition,
    TreeNode,
    TreeSpecError,
    leaf_paths,
    output_paths,
    read_treespec,
)

# Digits are limited: a dimension number of 10**9 would allocate a tuple as long, and `int` rejects 4,300.
_BASE = re.compile(r":\s*AOTInductorModelBase\(\s*(\d{1,6}),\s*(\d{1,6})(?:,\s*(\d{1,6}))?")
_NAME = re.compile(r'inputs_info_\[(\d{1,6})\]\.name = "((?:[^"\\]|\\.)*)"')
_OUTPUT = re.compile(r"outputs_info_\[(\d{1,6})\]\.name =")
_SPEC = re.compile(r'\b(in|out)_spec_ =\s*((?:R"\(.*?\)"\s*)+);', re.S)
_RAW_STRING = re.compile(r'R"\((.*?)\)"', re.S)
_CHECK = re.compile(r"static void check_input_(\d{1,6})\(")
_DTYPE = re.compile(r"_expected_dtype = aoti_torch_dtype_(\w+)\(\)")
_STATIC_SIZE = re.compile(r"if \((\d{1,19})L? != \w+_size\[(\d{1,3})\]\)")
_LOWER = re.compile(r"if \(\w+_size\[(\d{1,3})\] < (-?\d{1,19})L*\)")
_UPPER = re.compile(r"if \(\w+_size\[(\d{1,3})\] > (-?\d{1,19})L*\)")
_STATIC_STRIDE = re.compile(r"if \((-?\d{1,19})L? != \w+_stride\[(\d{1,3})\]\)")
_DEVICE = re.compile(r'_expected_device_type << "\d*\((\w+)\)')
_SYMBOL = re.compile(r"\bint64_t (\w+) = (\w+)_(size|stride)\[(\d{1,3})\];")
_SOLVED = re.compile(r"\bint64_t (\w+) = (.*\b(\w+)_(size|stride)_(\d{1,3})\b.*);")
_SIZE_ASSERT = re.compile(r'assert_size_stride\((\w+), \{([^}]*)\}, \{([^}]*)\}[^;]*"input"')
_ARGUMENT = re.compile(r"arg(\d{1,9})_1")
_LONG_SUFFIX = re.compile(r"(?<=\d)L+\b")
_INTEGER = re.compile(r"-?\d{1,19}")

_END, _RUN = "} // ", "::run_impl"

UNKNOWN = "the package does not say which inputs it takes: its wrapper.cpp is not there or not whole"
UNBOUNDED = 2**63 - 1
"""The generator clips upper bounds to this value (cpp_wrapper_cpu.py, torch 2.13): unbounded."""


@dataclass
class _Facts:
    """Facts about one input from its `check_input_N` and the later assert."""

    dtype: str | None = None
    device_type: str | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    lower: dict[int, int] = field(default_factory=dict)
    upper: dict[int, int] = field(default_factory=dict)
    strides: dict[int, int] = field(default_factory=dict)


def read_signature(wrapper: str) -> Signature:
    """The compiled signature from a wrapper's text. Never raises: `problems` lists unread parts."""
    problems = _cuts(wrapper)
    head, prologue = _constructor(wrapper), _prologue(wrapper)
    names = _names(head, problems)
    checks = dict(_checks(wrapper))
    symbols = tuple(_symbols(prologue))
    inputs = [_with_symbols(_input(i, names[i], checks.get(i), problems), symbols) for i in sorted(names)]
    asserts = _size_asserts(wrapper, {item.name for item in inputs})
    inputs = [_with_assert(item, asserts.get(item.name)) for item in inputs]
    specs = _specs(head, problems)
    known = _declared(head) == len(names)
    notes = [] if known else [UNKNOWN]
    inputs = _with_paths(inputs, specs.get("in"), notes)
    out_spec = specs.get("out")
    return Signature(
        inputs=tuple(inputs),
        output_count=_output_count(head),
        output_paths=output_paths(out_spec) if out_spec else (),
        in_spec=specs.get("in"),
        out_spec=out_spec,
        symbols=symbols,
        problems=tuple(problems),
        notes=tuple(notes),
        known=known,
    )


def _cuts(text: str) -> list[str]:
    """The missing parts of a truncated wrapper."""
    problems = []
    if "__check_inputs_outputs(" not in text:
        problems.append(f"the input checks end at line {_lines(text)}: sizes and dtypes may be missing")
    if not _is_closed(text):
        problems.append(f"run_impl ends at line {_lines(text)}: symbols and relations may be missing")
    return problems


def _is_closed(text: str) -> bool:
    """Whether the line `} // AOTInductorModel::run_impl` exists. No regex: a wrapper may have 30 MB."""
    at = text.rfind(_RUN)
    return at >= 0 and text.startswith(_END, text.rfind("\n", 0, at) + 1)


def _lines(text: str) -> int:
    return text.count("\n") + 1


def plain_expression(text: str) -> str:
    """Drop C++ integer suffixes: `2*s44` for `2L*s44`."""
    return _LONG_SUFFIX.sub("", text.strip())


def _constructor(text: str) -> str:
    """The text from the base constructor call to the end of the model's constructor, or empty."""
    start = max(text.find("AOTInductorModelBase("), 0) or text.find("inputs_info_[")
    if start < 0:
        return ""
    end = text.find("const_run_impl(", start)
    return text[text.rfind("\n", 0, start) + 1 : end if end > 0 else None]


def _prologue(text: str) -> str:
    """The top of `run_impl`, which names inputs and defines symbols."""
    start = text.find(f"{_RUN}(")
    if start < 0:
        return ""
    end = text.find("inputs.clear();", start)
    return text[start : end if end > 0 else start + 1_000_000]


def _names(head: str, problems: list[str]) -> dict[int, str]:
    names = {int(m[1]): m[2] for m in _NAME.finditer(head)}
    declared = _declared(head)
    if declared is None:
        problems.append("no AOTInductorModel constructor: the wrapper is cut or not AOTInductor's")
    elif declared != len(names):
        problems.append(f"the constructor declares {declared} inputs, and names {len(names)}")
    return names


def _declared(head: str) -> int | None:
    """The number of inputs that the constructor declares, if any."""
    base = _BASE.search(head)
    return int(base[1]) if base else None


def _output_count(head: str) -> int | None:
    base = _BASE.search(head)
    return int(base[2]) if base else len(set(_OUTPUT.findall(head))) or None


def _checks(text: str) -> Iterator[tuple[int, str]]:
    """The body of each `check_input_N`."""
    start = text.find("static void check_input_")
    if start < 0:
        return
    end = text.find("__check_inputs_outputs(", start)
    region = text[start : end if end > 0 else None]
    found = list(_CHECK.finditer(region))
    for match, after in zip_longest(found, found[1:]):
        yield int(match[1]), region[match.end() : after.start() if after else None]


def _input(index: int, name: str, body: str | None, problems: list[str]) -> CompiledInput:
    if body is None:
        problems.append(
            f"input {index} ({name}) has no check_input_{index}: its shape and dtype are not known"
        )
        return CompiledInput(index, name)
    facts = _facts(body)
    if facts.dtype is None:
        problems.append(f"check_input_{index} names no dtype")
    rank = 1 + max((*facts.sizes, *facts.lower, *facts.upper, *facts.strides), default=-1)
    return CompiledInput(
        index,
        name,
        dtype=facts.dtype,
        dims=tuple(_dim(i, facts) for i in range(rank)),
        strides=tuple(facts.strides.get(i) for i in range(rank)),
        device_type=facts.device_type,
    )


def _facts(body: str) -> _Facts:
    dtype, device = _DTYPE.search(body), _DEVICE.search(body)
    return _Facts(
        dtype=dtype[1] if dtype else None,
        device_type=device[1] if device else None,
        sizes={int(dim): int(size) for size, dim in _STATIC_SIZE.findall(body)},
        lower={int(dim): int(bound) for dim, bound in _LOWER.findall(body)},
        upper={int(dim): int(bound) for dim, bound in _UPPER.findall(body) if int(bound) < UNBOUNDED},
        strides={int(dim): int(stride) for stride, dim in _STATIC_STRIDE.findall(body)},
    )


def _dim(index: int, facts: _Facts) -> CompiledDim:
    return CompiledDim(index, facts.sizes.get(index), None, facts.lower.get(index), facts.upper.get(index))


def _symbols(prologue: str) -> Iterator[SymbolDefinition]:
    for line in prologue.splitlines():
        if match := _SYMBOL.search(line):
            if not match[1].endswith(f"_{match[3]}_{match[4]}"):
                yield SymbolDefinition(match[1], match[2], match[3], int(match[4]))
        elif match := _SOLVED.search(line):
            yield SymbolDefinition(match[1], match[3], match[4], int(match[5]), match[2])


def _with_symbols(item: CompiledInput, symbols: tuple[SymbolDefinition, ...]) -> CompiledInput:
    """Attach symbols to the dimensions that define them. May extend `dims` by dimensions without a check."""
    own = {s.dim: s.symbol for s in symbols if s.name == item.name and s.what == "size" and not s.solution}
    rank = max((len(item.dims), *(dim + 1 for dim in own)))
    dims = (*item.dims, *(CompiledDim(i) for i in range(len(item.dims), rank)))
    return replace(
        item,
        dims=tuple(replace(dim, expression=own.get(dim.index)) for dim in dims),
        strides=(*item.strides, *(None,) * (rank - len(item.strides))),
    )


def _size_asserts(text: str, names: set[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Sizes and strides of the first `assert_size_stride` of each input (torch >= 2.13)."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for match in _SIZE_ASSERT.finditer(text, max(text.find(f"{_RUN}("), 0)):
        if match[1] in names and match[1] not in found:
            found[match[1]] = _split(match[2]), _split(match[3])
    return found


def _split(items: str) -> list[str]:
    """Split a C++ brace list at commas outside parentheses."""
    parts, depth, current = [], 0, ""
    for char in items:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [plain_expression(part) for part in (*parts, current) if part.strip()]


def _with_assert(item: CompiledInput, found: tuple[list[str], list[str]] | None) -> CompiledInput:
    if found is None:
        return item
    sizes, strides = found
    known = {dim.index: dim for dim in item.dims}
    dims = tuple(_dim_of(known.get(i, CompiledDim(i)), text) for i, text in enumerate(sizes))
    return replace(item, dims=dims, strides=tuple(_number(text) for text in strides))


def _dim_of(dim: CompiledDim, text: str) -> CompiledDim:
    value = _number(text)
    return replace(dim, size=value) if isinstance(value, int) else replace(dim, expression=value)


def _number(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text) else text


def _specs(head: str, problems: list[str]) -> dict[str, TreeNode]:
    """The input and output trees; empty for a package lowered without specs."""
    specs = {}
    for match in _SPEC.finditer(head):
        text = "".join(_RAW_STRING.findall(match[2]))
        try:
            if text:
                specs[match[1]] = read_treespec(text)
        except TreeSpecError as error:
            problems.append(f"{match[1]}_spec_ cannot be read: {error}")
    return specs


def _with_paths(inputs: list[CompiledInput], spec: TreeNode | None, notes: list[str]) -> list[CompiledInput]:
    """Set the caller's path of each input, and note non-tensor leaves, which are fixed in the code."""
    if spec is None:
        return inputs
    paths = leaf_paths(spec)
    leaves = _leaves(inputs, len(paths))
    if leaves is None:
        notes.append(
            f"the exported call had {len(paths)} leaves, of which {len(inputs)} are tensors: the others are "
            "fixed in the code, so that the caller's names of the inputs cannot be told"
        )
        return inputs
    fixed = [path for leaf, path in enumerate(paths) if leaf not in leaves]
    if fixed:
        notes.append(f"{', '.join(fixed)}: fixed in the code as at export; what the caller passes is ignored")
    return [replace(item, path=paths[leaf]) for item, leaf in zip(inputs, leaves, strict=True)]


def _leaves(inputs: list[CompiledInput], count: int) -> list[int] | None:
    """The leaf index of each input among `count` leaves; None if ambiguous.

    `argN_1` numbers parameters first, then all leaves, tensors or not (seen in torch 2.11 and 2.13). So with
    non-tensor leaves the numbers identify the leaves, if the first and last leaf are tensors.
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
    """Map each input that is copied when misaligned to its required alignment in bytes."""
    return {found["name"]: int(found["bytes"]) for found in _COPY.finditer(wrapper)}
